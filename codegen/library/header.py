"""The C header of a library: what there is, and how it is called.

Invariant: what comes from the model (names of tensors, its own) stands in comments and texts only,
escaped so that it ends neither.
"""

from __future__ import annotations

from tilesmith.codegen.library.plan import Plan, Tensor
from tilesmith.codegen.library.status import STATUS

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
    const int64_t *shape; /* of `rank` extents */
    size_t bytes;
}} tilesmith_tensor;

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

/* Let go of the weights; no workspace may be used after it, until the next {p}_init. */
void {p}_end(void);

/* Make a workspace. threads: how many run the model, at most {P}_THREADS and no more than there are
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


def header(plan: Plan) -> str:
    """The text of the header."""
    upper = plan.prefix.upper()
    status = ",\n".join(
        f"    TILESMITH_{name} = {number} /* {sentence} */"
        for number, (name, sentence) in enumerate(STATUS)
    )
    inputs = [_line(n, end.tensor) for n, end in enumerate(plan.inputs)]
    outputs = [_line(n, end.tensor) for n, end in enumerate(plan.outputs)]
    lines = [
        f"/* {_comment(plan.about)}",
        "",
        "   Inputs:",
        *inputs,
        "   Outputs:",
        *outputs,
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
        f"#define {upper}_THREADS {plan.team}",
        f'#define {upper}_WEIGHTS "{_literal(plan.file)}"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        _OWN.format(p=plan.prefix, P=upper, init=_init(plan), updates=_updates(plan)),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _init(plan: Plan) -> str:
    if plan.file:
        return (
            f"weights: the path of the file {plan.prefix.upper()}_WEIGHTS, which is mapped: all "
            "processes share it."
        )
    return "weights: NULL, for they are in the library."


def _updates(plan: Plan) -> str:
    found = [(end, plan.inputs[end.updates]) for end in plan.outputs if end.updates >= 0]
    if not found:
        return ""
    pairs = ", ".join(
        f"'{_comment(end.tensor.name)}' in '{_comment(source.tensor.name)}'"
        for end, source in found
    )
    return (
        "\n   Some outputs are left in the memory of an input, which the run writes, and may be "
        f"NULL as outputs:\n   {pairs}."
    )


def _line(number: int, tensor: Tensor) -> str:
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
