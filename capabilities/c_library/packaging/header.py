"""The C header of a library: what there is, and how it is called.

Invariant: what comes from the model (names of tensors, its own) stands in comments and texts only,
escaped so that it ends neither.
"""

from tilesmith.capabilities.c_library.code.plan import LibraryPlan, LibraryTensor
from tilesmith.capabilities.c_library.code.status import STATUS

_COMMON = """\
#ifndef TILESMITH_LIBRARY
#define TILESMITH_LIBRARY
#ifdef __cplusplus
extern "C" {{
#endif

/* What functions return; PREFIX_status has a sentence for each. */
enum tilesmith_status {{
{status}
}};

/* An input or output. */
typedef struct tilesmith_tensor {{
    const char *name;
    const char *dtype;    /* "float32", "int64", ... */
    int32_t type;         /* the same, as ONNX numbers it (TensorProto.DataType) */
    int32_t rank;
    const int64_t *shape; /* of `rank` extents; -1: it varies */
    size_t bytes;         /* at most, where sizes vary */
}} tilesmith_tensor;

/* A size that varies from run to run. */
typedef struct tilesmith_size {{
    const char *name;
    int64_t least, greatest;
}} tilesmith_size;

#ifdef __cplusplus
}}
#endif
#endif
"""

_OWN = """\
/* What a caller works in: its own memory, and the threads that help it. One run at a time. */
typedef struct {p}_workspace {p}_workspace;

/* Get ready; once a process at least, more often does no harm, from any thread.
   {init} */
int {p}_init(const char *weights);

/* Read all weights, and compare their checksum with what it was when they were compiled: 0, or
   TILESMITH_WEIGHTS. {p}_init looks at the head and the length of a file alone. */
int {p}_verify(void);

/* Let go of the weights; no workspace may be used after it, until the next {p}_init. */
void {p}_end(void);

/* Make a workspace. It is of this process: one with threads does not run in a child that is forked
   later. threads: how many run the model, at most {P}_THREADS and no more than there are
   cores for it; 0: as many as can be. */
int {p}_create(int threads, {p}_workspace **workspace);

/* The same in memory of the caller's: {p}_workspace_bytes() of it, at a multiple of 64; it has to
   stay until the workspace is destroyed. */
size_t {p}_workspace_bytes(void);
int {p}_create_in(void *memory, size_t bytes, int threads, {p}_workspace **workspace);

/* End a workspace; NULL is one, too. */
void {p}_destroy({p}_workspace *workspace);

/* How many inputs and outputs there are, and what they are; NULL behind the last. */
size_t {p}_inputs(void);
size_t {p}_outputs(void);
const tilesmith_tensor *{p}_input(size_t number);
const tilesmith_tensor *{p}_output(size_t number);

/* Run the model: arrays in row-major order, one pointer for each input and output, in order. They
   are aligned as their elements are; outputs overlap nothing else. Nothing is allocated. Any number
   of threads may run at once, each in a workspace of its own.
   Returns 0 (TILESMITH_OK), else what {p}_error explains; outputs are undefined then.{updates} */
int {p}_run({p}_workspace *workspace, const void *const *inputs, void *const *outputs);

/* What became of the last run in a workspace, as a sentence; "" if it went well. */
const char *{p}_error(const {p}_workspace *workspace);

/* What a status means. */
const char *{p}_status(int status);

/* The model, its target and what compiled it. */
const char *{p}_about(void);
"""


_SIZES = """\
/* The sizes that vary; NULL behind the last. */
size_t {p}_sizes(void);
const tilesmith_size *{p}_size(size_t number);

/* Set the sizes of a workspace, by the shape of each input, in order (of one without axes: NULL).
   Nothing is allocated. A workspace has no sizes before; what is refused changes none. */
int {p}_resize({p}_workspace *workspace, const int64_t *const *shapes);

/* Inputs and outputs at the sizes that are set, until they are set again; NULL before. */
const tilesmith_tensor *{p}_input_at(const {p}_workspace *workspace, size_t number);
const tilesmith_tensor *{p}_output_at(const {p}_workspace *workspace, size_t number);

/* What {p}_create_in needs for some sizes, in the order of {p}_size; 0 where they are out of range,
   or the processor lacks instructions.
   {p}_workspace_bytes() is enough for all. */
size_t {p}_workspace_bytes_at(const int64_t *sizes);
"""


def header(plan: LibraryPlan) -> str:
    """The text of the header."""
    upper = plan.prefix.upper()
    status = ",\n".join(
        f"    TILESMITH_{name} = {number} /* {sentence} */"
        for number, (name, sentence) in enumerate(STATUS)
    )
    inputs = [_line(n, tensor) for n, tensor in enumerate(plan.inputs)]
    outputs = [_line(n, tensor) for n, tensor in enumerate(plan.outputs)]
    lines = [
        f"/* {_comment(plan.about)}",
        "",
        "   Inputs:",
        *inputs,
        "   Outputs:",
        *outputs,
        *_sizes(plan),
        "*/",
        f"#ifndef TILESMITH_{upper}_H",
        f"#define TILESMITH_{upper}_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        _COMMON.format(status=status),
        f"#define {upper}_INPUTS {len(plan.inputs)}",
        f"#define {upper}_OUTPUTS {len(plan.outputs)}",
        f"#define {upper}_SIZES {len(plan.sizes)}",
        f"#define {upper}_THREADS {plan.team}",
        f'#define {upper}_WEIGHTS "{_literal(plan.file)}"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        _OWN.format(p=plan.prefix, P=upper, init=_init(plan), updates=_updates(plan)),
        *([_SIZES.format(p=plan.prefix)] if plan.sizes else []),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _init(plan: LibraryPlan) -> str:
    if plan.file:
        return (
            f"weights: the path of the file {plan.prefix.upper()}_WEIGHTS, which is mapped: all "
            "processes share it."
        )
    return "weights: NULL, for they are in the library."


def _updates(plan: LibraryPlan) -> str:
    outputs = plan.bodies[0].outputs
    updated = [(end.tensor, plan.inputs[end.updates]) for end in outputs if end.updates >= 0]
    if not updated:
        return ""
    pairs = ", ".join(
        f"'{_comment(tensor.name)}' in '{_comment(source.name)}'" for tensor, source in updated
    )
    return (
        "\n   Some outputs are left in the memory of an input, which the run writes, and may be "
        f"NULL as outputs:\n   {pairs}."
    )


def _sizes(plan: LibraryPlan) -> list[str]:
    if not plan.sizes:
        return []
    return ["   Sizes:", *(f"     {s.name}: {s.low} to {s.high}" for s in plan.sizes)]


def _line(number: int, tensor: LibraryTensor) -> str:
    shape = "".join(f"[{extent}]" for extent in tensor.shape)
    return f"     {number}  {tensor.dtype}{shape}  {_comment(tensor.name)}"


def _comment(text: str) -> str:
    """A text that ends no comment and begins no line, in ASCII."""
    shown = text.encode("ascii", "backslashreplace").decode()
    shown = "".join(c if 32 <= ord(c) < 127 else " " for c in shown)
    return shown.replace("*/", "* /").replace("/*", "/ *").replace("??/", "? ?/").rstrip("\\")


def _literal(text: str) -> str:
    """The inside of a text of C."""
    return "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode()
    )
