// Two models in one program, each run by two threads at once, and an index that is out of range.
//
//     tilesmith compile classifier.onnx --emit archive -o classifier.a
//     tilesmith compile embedder.onnx --emit archive --weights file -o embedder.a
//     c++ -std=c++17 two_models.cpp classifier.a embedder.a -lm -lpthread -o two_models
//     ./two_models embedder.weights

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "classifier.h"
#include "embedder.h"
#include "tilesmith.hpp"

using Classifier = TILESMITH_MODEL(classifier);
using Embedder = TILESMITH_MODEL(embedder);

namespace {

void work(int seed, std::array<float, 10> &probabilities, std::array<float, 64> &embedding) {
    Classifier classifier;
    Embedder embedder;
    std::vector<float> image(28 * 28);
    std::vector<std::int64_t> tokens(16);
    for (std::size_t i = 0; i < image.size(); i++)
        image[i] = static_cast<float>((i * (static_cast<std::size_t>(seed) + 1)) % 29) / 29;
    for (std::size_t i = 0; i < tokens.size(); i++)
        tokens[i] = static_cast<std::int64_t>(i * 61 + static_cast<std::size_t>(seed));
    for (int i = 0; i < 100; i++) {
        classifier.run({image.data()}, {probabilities.data()});
        embedder.run({tokens.data()}, {embedding.data()});
    }
}

}  // namespace

int main(int argc, char **argv) try {
    Classifier::init();
    Embedder::init(argc > 1 ? argv[1] : EMBEDDER_WEIGHTS);

    std::array<std::array<float, 10>, 2> probabilities{};
    std::array<std::array<float, 64>, 2> embeddings{};
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 2; seed++)
        threads.emplace_back([&, seed] { work(seed, probabilities.at(seed), embeddings.at(seed)); });
    for (auto &thread : threads) thread.join();

    for (int seed = 0; seed < 2; seed++) {
        std::printf("thread %d:", seed);
        for (float value : probabilities.at(seed)) std::printf(" %.6f", static_cast<double>(value));
        std::printf(" | %.6f %.6f\n", static_cast<double>(embeddings.at(seed)[0]),
                    static_cast<double>(embeddings.at(seed)[63]));
    }

    try {
        Embedder embedder;
        std::vector<std::int64_t> tokens(16, 1000);
        embedder.run({tokens.data()}, {embeddings[0].data()});
    } catch (const tilesmith::Error &error) {
        std::printf("status %d: %s\n", error.status(), error.what());
    }
    return 0;
} catch (const tilesmith::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
