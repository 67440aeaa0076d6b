"""How samples of perf become parts of a call, without perf."""

from pathlib import Path

from tailrace_loadtest.bench.profile import Sample, part_of_path, samples, shares, system_call, table

PROGRAM = "/x/tailrace-dataplane"
PRINTED = f"""serve-0
\t          4fed8a tailrace_dataplane::http::head::usual::line ({PROGRAM})

serve-0
\tffffffff81000000 tcp_ack ([kernel.kallsyms])
\tffffffff81000001 __x64_sys_sendto ([kernel.kallsyms])
\t    7f0000000000 __send (/usr/lib/libc.so.6)

run-shipper
\t          100000 tailrace_dataplane::runs::ship ({PROGRAM})

serve-0
\t    7f0000000001 malloc (/usr/lib/libc.so.6)
"""


def test_samples_are_read_innermost_first() -> None:
    found = samples(PRINTED)
    assert [each.thread for each in found] == ["serve-0", "serve-0", "run-shipper", "serve-0"]
    assert found[0].frames[0] == (0x4FED8A, "tailrace_dataplane::http::head::usual::line", PROGRAM)
    assert [symbol for _, symbol, _ in found[1].frames] == ["tcp_ack", "__x64_sys_sendto", "__send"]


def test_a_sample_counts_once_for_its_file_its_system_call_or_its_thread() -> None:
    files = {0x4FED8A: ["/rustc/library/core/src/slice/index.rs", "/y/dataplane-rs/src/http/head/usual.rs"]}
    found = shares(samples(PRINTED), files, Path(PROGRAM))
    assert found == {"heads": 0.25, "kernel: write": 0.25, "beside: run-shipper": 0.25, "libc": 0.25}


def test_only_the_kernel_has_system_calls() -> None:
    assert system_call(Sample("serve-0", ((1, "__x64_sys_sendto", PROGRAM),))) is None
    assert system_call(Sample("serve-0", ((1, "asm_sysvec", "[kernel.kallsyms]"),))) == "kernel: other"
    assert part_of_path("/y/elsewhere.rs") is None


def test_the_table_adds_up_to_what_a_call_costs() -> None:
    printed = table({"plain": (10.0, {"heads": 0.5, "libc": 0.495, "key": 0.005})})
    assert printed.splitlines()[2:] == ["| **all** | **10.00** |", "| heads | 5.00 |", "| libc | 4.95 |", "| the rest | 0.05 |"]
