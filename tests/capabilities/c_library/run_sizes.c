/* Runs a library of one input and one output, float and of two axes, at every number of rows from high to low:
   prints rows, then the output. -DMODEL=prefix, -include its header. */
#include <stdio.h>
#include <stdlib.h>

#define PASTE(a, b) a##_##b
#define NAME(a, b) PASTE(a, b)
#define CALL(name) NAME(MODEL, name)

int main(void) {
    CALL(workspace) *workspace = NULL;
    int64_t columns = CALL(input)(0)->shape[1];
    if (CALL(init)(NULL) || CALL(create)(0, &workspace)) return 1;
    for (int64_t rows = CALL(size)(0)->greatest; rows >= CALL(size)(0)->least; rows--) {
        int64_t shape[] = {rows, columns};
        const int64_t *shapes[] = {shape};
        if (CALL(resize)(workspace, shapes)) return puts(CALL(error)(workspace)), 2;
        size_t bytes = CALL(output_at)(workspace, 0)->bytes;
        float *x = malloc(CALL(input_at)(workspace, 0)->bytes), *y = malloc(bytes);
        const void *inputs[] = {x};
        void *outputs[] = {y};
        for (int64_t i = 0; i < rows * columns; i++) x[i] = (float)(i % 13) / 8 - 1;
        if (CALL(run)(workspace, inputs, outputs)) return puts(CALL(error)(workspace)), 3;
        printf("%d", (int)rows);
        for (size_t i = 0; i < bytes / sizeof *y; i++) printf(" %.9g", y[i]);
        puts("");
        free(x);
        free(y);
    }
    CALL(destroy)(workspace);
    return 0;
}
