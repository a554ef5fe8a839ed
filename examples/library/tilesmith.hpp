// Models compiled by Tilesmith, for C++17: workspaces that end by themselves, errors as exceptions.
//
//     #include "classifier.h"
//     #include "tilesmith.hpp"
//
//     using Classifier = TILESMITH_MODEL(classifier);
//     Classifier::init();                  // once a process; the path of its weights, if they are in a file
//     Classifier model;                    // one for each thread that runs it
//     model.run({image.data()}, {probabilities.data()});

#ifndef TILESMITH_HPP
#define TILESMITH_HPP

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define TILESMITH_MODEL(prefix)                                                                   \
    tilesmith::Model<prefix##_workspace, prefix##_init, prefix##_create, prefix##_destroy,        \
                     prefix##_inputs, prefix##_input, prefix##_outputs, prefix##_output,          \
                     prefix##_run, prefix##_error, prefix##_status>

namespace tilesmith {

/// What a function of a library returned, and the sentence that explains it.
class Error : public std::runtime_error {
public:
    Error(int status, const std::string &text) : std::runtime_error(text), status_(status) {}
    int status() const noexcept { return status_; }

private:
    int status_;
};

/// A model's workspace. Any number of them run at once; each is one thread's at a time.
template <class Workspace, auto Init, auto Create, auto Destroy, auto Inputs, auto Input,
          auto Outputs, auto Output, auto Run, auto Explain, auto Status>
class Model {
public:
    /// Get ready. `weights`: the path of their file, nullptr where they are in the library.
    static void init(const char *weights = nullptr) { check(Init(weights)); }

    /// `threads`: how many run the model; 0: as many as it was compiled for, and there are cores.
    explicit Model(int threads = 0) { check(Create(threads, &workspace_)); }
    ~Model() { Destroy(workspace_); }
    Model(Model &&other) noexcept : workspace_(std::exchange(other.workspace_, nullptr)) {}
    Model &operator=(Model &&other) noexcept {
        std::swap(workspace_, other.workspace_);
        return *this;
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    static std::size_t inputs() noexcept { return Inputs(); }
    static std::size_t outputs() noexcept { return Outputs(); }
    static const auto &input(std::size_t number) { return tensor(Input(number)); }
    static const auto &output(std::size_t number) { return tensor(Output(number)); }

    /// One pointer for each input and output, in order.
    void run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
        if (inputs.size() != Inputs() || outputs.size() != Outputs())
            throw Error(1, "the model has " + std::to_string(Inputs()) + " inputs and " +
                               std::to_string(Outputs()) + " outputs");
        if (const int status = Run(workspace_, inputs.data(), outputs.data()))
            throw Error(status, Explain(workspace_));
    }

private:
    static void check(int status) {
        if (status) throw Error(status, Status(status));
    }
    template <class Tensor> static const Tensor &tensor(const Tensor *found) {
        if (!found) throw Error(1, "there are not so many tensors");
        return *found;
    }

    Workspace *workspace_ = nullptr;
};

}  // namespace tilesmith

#endif
