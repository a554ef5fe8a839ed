/* Runs a library on files: run_library WEIGHTS THREADS RUNS INPUT... OUTPUT...; -DMODEL=prefix, -include its header.
   Every array ends where memory ends, so that reading or writing behind one is a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PASTE(a, b) a##_##b
#define NAME(a, b) PASTE(a, b)
#define CALL(name) NAME(MODEL, name)

static void *guarded(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    char *start = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start + whole, page, PROT_NONE)) exit(3);
    return start + whole - bytes;
}

static int check(int status, const char *where) {
    if (status) fprintf(stderr, "%s: %s\n", where, CALL(status)(status));
    return status;
}

int main(int argc, char **argv) {
    size_t inputs = CALL(inputs)(), outputs = CALL(outputs)();
    const void *in[64];
    void *out[64];
    CALL(workspace) *workspace = NULL;
    if (argc != (int)(4 + inputs + outputs)) return 4;
    if (check(CALL(init)(*argv[1] ? argv[1] : NULL), "init")) return 1;
    if (check(CALL(create)(atoi(argv[2]), &workspace), "create")) return 1;
    for (size_t i = 0; i < inputs; i++) {
        const tilesmith_tensor *tensor = CALL(input)(i);
        void *array = guarded(tensor->bytes);
        FILE *file = fopen(argv[4 + i], "rb");
        if (!file || fread(array, 1, tensor->bytes, file) != tensor->bytes) return 5;
        fclose(file);
        in[i] = array;
    }
    for (size_t i = 0; i < outputs; i++) out[i] = guarded(CALL(output)(i)->bytes);
    for (int i = 0; i < atoi(argv[3]); i++)
        if (CALL(run)(workspace, in, out)) {
            fprintf(stderr, "run: %s\n", CALL(error)(workspace));
            return 1;
        }
    for (size_t i = 0; i < outputs; i++) {
        FILE *file = fopen(argv[4 + inputs + i], "wb");
        size_t bytes = CALL(output)(i)->bytes;
        if (!file || fwrite(out[i], 1, bytes, file) != bytes || fclose(file)) return 5;
    }
    CALL(destroy)(workspace);
    CALL(end)();
    return 0;
}
