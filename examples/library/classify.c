/* One model from C: what it takes and gives, a run, and what a wrong call says.

   tilesmith compile classifier.onnx --emit archive -o classifier.a
   cc classify.c classifier.a -lm -o classify */

#include <stdio.h>

#include "classifier.h"

static void describe(const char *kind, const tilesmith_tensor *tensor) {
    printf("%s %s: %s", kind, tensor->name, tensor->dtype);
    for (int axis = 0; axis < tensor->rank; axis++)
        printf("%s%lld", axis ? "x" : " ", (long long)tensor->shape[axis]);
    printf(", %zu bytes\n", tensor->bytes);
}

int main(void) {
    static float image[28 * 28], probabilities[10];
    const void *inputs[CLASSIFIER_INPUTS] = {image};
    void *outputs[CLASSIFIER_OUTPUTS] = {probabilities};
    classifier_workspace *workspace;
    int status, best = 0;

    for (size_t i = 0; i < classifier_inputs(); i++) describe("input", classifier_input(i));
    for (size_t i = 0; i < classifier_outputs(); i++) describe("output", classifier_output(i));

    /* The weights are in the library: nothing to name. A workspace is all the memory of a caller;
       no run allocates any. */
    if ((status = classifier_init(NULL)) || (status = classifier_create(0, &workspace))) {
        fprintf(stderr, "%s\n", classifier_status(status));
        return 1;
    }
    for (int i = 0; i < 28 * 28; i++) image[i] = (float)(i % 29) / 29;
    if (classifier_run(workspace, inputs, outputs)) {
        fprintf(stderr, "%s\n", classifier_error(workspace));
        return 1;
    }
    for (int i = 0; i < 10; i++) {
        printf("class %d: %.6f\n", i, probabilities[i]);
        if (probabilities[i] > probabilities[best]) best = i;
    }
    printf("it is a %d\n", best);

    outputs[0] = NULL;
    if (classifier_run(workspace, inputs, outputs))
        printf("a wrong call: %s\n", classifier_error(workspace));

    classifier_destroy(workspace);
    return 0;
}
