"""Who a machine is, and for which targets it may measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesmith.codegen.host.machine import cpu_target, host_target, narrowed
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration
from tilesmith.tuner.machines import identity
from tilesmith.tuner.machines.identity import Machine, host_facts, this_machine, unfit

FEATURES = ",".join(
    part
    for name in ("avx512", "avx2", "sse")
    for part in instruction_set(name).features.split(",")
    if part.startswith("+")
)
AVX512 = cpu_target("box", "avx512", "x86_64-unknown-linux-gnu", "znver4", FEATURES)


def of_another_set(isa: str) -> Target:
    return narrowed(AVX512, isa)


def test_a_machine_survives_json_and_carries_its_calibration() -> None:
    target = with_calibration(host_target(), {"clock.ghz": 3.5})
    machine = this_machine(target)
    assert machine == Machine.from_json(machine.to_json())
    assert machine.identity == target.identity and machine.calibration["clock.ghz"] == 3.5
    assert machine.facts["cores"] and this_machine().calibration == {}


def test_names_are_the_hosts_own_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_machine().name.startswith(this_machine().host)
    monkeypatch.setenv(identity.ENVIRONMENT, "rack-3")
    assert this_machine().name == "rack-3"


def test_facts_are_read_of_the_system(tmp_path: Path) -> None:
    written = {
        "proc/cpuinfo": "model name\t: Big 9\nmicrocode\t: 0xab\nflags\t: fpu hypervisor\n",
        "proc/meminfo": "MemTotal:       2097152 kB\n",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host_facts(tmp_path)
    wanted = {
        "model": "Big 9", "microcode": "0xab", "virtual": "yes", "memory_mib": 2048,
        "threads_per_core": 2, "governor": "powersave",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert set(host_facts(tmp_path / "none")) <= {"model", "cores", "kernel"}


def test_a_machine_measures_for_itself_and_for_less_of_itself() -> None:
    assert unfit(AVX512, AVX512) is None
    for isa in ("avx2", "sse"):
        assert unfit(of_another_set(isa), AVX512) is None
    calibrated = with_calibration(AVX512, {"clock.ghz": 9.0})
    assert unfit(AVX512, calibrated) is None


@pytest.mark.parametrize(
    ("target", "host", "sentence"),
    [
        (of_another_set("neon"), AVX512, "has no 'neon' instructions: it is x86_64"),
        (AVX512, of_another_set("avx2"), "has no 'avx512' instructions: it lacks avx512"),
        (AVX512, of_another_set("neon"), "has no 'avx512' instructions: it is aarch64"),
        (of_another_set("sve256"), of_another_set("sve128"), "has vectors of 16 bytes, 'sve256'"),
        (
            AVX512.with_settings({"l2.kib": 4096}),
            AVX512,
            f"is another machine: its l2.kib is {AVX512.integer('l2.kib')}, the target's 4096",
        ),
        (load_target("trn1"), AVX512, "is of the family 'cpu', not 'trainium'"),
    ],
)
def test_others_are_refused_in_a_sentence(target: Target, host: Target, sentence: str) -> None:
    assert (unfit(target, host) or "").startswith(sentence)
