"""Which processor this is, for what was made for one and must not run on another."""

import hashlib
import platform

__all__ = ["describe_cpu"]

_CPU_INFO = "/proc/cpuinfo"
# What tells two processors apart; the rest of cpuinfo changes from core to core and by the minute.
_CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
    *("isa", "uarch", "cpu", "machine", "features"),
)


def describe_cpu() -> str:
    """What the processor is and can do, as a hash.

    On Linux that is what /proc/cpuinfo says. Elsewhere it is no more than Python knows, which names
    no features, so the name of the machine is part of it: a processor exchanged for another of its
    kind is not noticed there.
    """
    facts = [platform.system(), platform.machine()]
    try:
        with open(_CPU_INFO, encoding="utf-8", errors="replace") as file:
            facts += sorted({line for line in file if line.split(":")[0].strip() in _CPU_FIELDS})
    except OSError:
        facts += [platform.processor(), platform.version(), platform.node()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()
