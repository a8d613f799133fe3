"""What ``schemata`` of a group holds, and what the kernel takes when it is written.

Owns: the controls of a machine, their values by CLOSID and domain, and the rules for new values. Does not own: groups.
Words and rules are those of Linux 6.16, fs/resctrl (also where they are odd: an unknown domain is refused without one).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from support.resctrl.hardware import Cache, Hardware, MemoryBandwidth

EXCLUSIVE = "exclusive"
SHAREABLE = "shareable"
LOCKSETUP = "pseudo-locksetup"
LOCKED = "pseudo-locked"
_MBPS_MAX = (1 << 32) - 1
_ULONG_MAX = (1 << 64) - 1


class Refused(OSError):
    """What the kernel refuses: an errno, and the line for ``info/last_cmd_status``, which may be empty."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(number, text)
        self.text = text


@dataclass
class Control:
    """One line of ``schemata``."""

    name: str
    resource: Cache | MemoryBandwidth
    num_closids: int
    peer: Control | None = None
    """With separate masks for code and data: the other one, in the same cache."""
    values: dict[tuple[int, int], int] = field(default_factory=dict)
    """By CLOSID and domain."""

    @property
    def unlimited(self) -> int:
        """The value of a group that may have everything."""
        if isinstance(self.resource, Cache):
            return self.resource.cbm_mask
        return _MBPS_MAX if self.resource.mbps else self.resource.max_bandwidth

    def shown(self, closid: int) -> str:
        """Return the values as ``schemata`` shows them."""
        form = "x" if isinstance(self.resource, Cache) else "d"
        return ";".join(f"{domain}={self.values[closid, domain]:{form}}" for domain in self.resource.domains)

    def sizes(self, closid: int) -> str:
        """Return what ``size`` shows."""
        return ";".join(f"{domain}={self._size(self.values[closid, domain])}" for domain in self.resource.domains)

    def _size(self, value: int) -> int:
        if isinstance(self.resource, MemoryBandwidth):
            return value
        return self.resource.size // self.resource.cbm_mask.bit_length() * value.bit_count()


@dataclass
class Modes:
    """The modes of the groups, by CLOSID; what is not here is not in use."""

    of: dict[int, str]


class Controls:
    """All controls of a machine, in the order of ``schemata``: the kernel puts each before those it had."""

    def __init__(self, hardware: Hardware) -> None:
        self.all: list[Control] = []
        for name, cache in (("L3", hardware.l3), ("L2", hardware.l2)):
            if cache is not None:
                self.all[:0] = reversed(_of_cache(name, cache))
        if hardware.mb is not None:
            self.all.insert(0, Control("MB", hardware.mb, hardware.mb.num_closids))
        self.num_closids = min((control.num_closids for control in self.all), default=1)
        # Room for CODE and DATA is left where they could be asked for with another mount.
        self.width = 6 if hardware.l3 or hardware.l2 else 2
        self.init_root()

    def init_root(self) -> None:
        """Give the root everything."""
        for control in self.all:
            for domain in control.resource.domains:
                control.values[0, domain] = control.unlimited

    def shown(self, closid: int) -> str:
        """Return the content of ``schemata``."""
        return "".join(f"{item.name:>{self.width}}:{item.shown(closid)}\n" for item in self.all)

    def sizes(self, closid: int) -> str:
        """Return the content of ``size``."""
        return "".join(f"{item.name:>{self.width}}:{item.sizes(closid)}\n" for item in self.all)

    def init(self, closid: int, modes: Modes) -> None:
        """Give a new group what is shareable or unused.

        :raises Refused: ENOSPC, if that is too little.
        """
        for control in self.all:
            for domain in control.resource.domains:
                value = control.unlimited
                if isinstance(control.resource, Cache):
                    value = _free_mask(control, control.resource, domain, closid, modes)
                control.values[closid, domain] = value

    def write(self, text: str, closid: int, modes: Modes) -> None:
        """Take what was written to ``schemata``, all of it or nothing.

        :raises Refused: EINVAL.
        """
        staged: dict[tuple[str, int], int] = {}
        for line in text.split("\n"):
            name, colon, values = line.partition(":")
            name = name.strip()
            if not colon:
                raise Refused(errno.EINVAL, "Missing ':'")
            if not values:
                raise Refused(errno.EINVAL, f"Missing '{name}' value")
            control = next((item for item in self.all if item.name == name), None)
            if control is None:
                raise Refused(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            _stage(control, values, closid, modes, staged)
        for control in self.all:
            for domain in control.resource.domains:
                if (control.name, domain) in staged:
                    control.values[closid, domain] = staged[control.name, domain]

    def check_exclusive(self, closid: int, modes: Modes) -> None:
        """Check that a group may become exclusive.

        :raises Refused: EINVAL.
        """
        caches = [control for control in self.all if isinstance(control.resource, Cache)]
        for control in caches:
            for domain in control.resource.domains:
                if _overlaps(control, domain, control.values[closid, domain], closid, modes, exclusive=False):
                    raise Refused(errno.EINVAL, "Schemata overlaps")
        if not caches:
            raise Refused(errno.EINVAL, "Cannot be exclusive without CAT/CDP")

    def bit_usage(self, control: Control, cache: Cache, modes: Modes) -> str:
        """Return the content of ``bit_usage`` in a control's ``info``."""
        shown = []
        for domain in cache.domains:
            used = {SHAREABLE: 0, EXCLUSIVE: 0}
            for closid, mode in modes.of.items():
                used[mode] |= control.values[closid, domain]
            bits = (1 << bit for bit in reversed(range(cache.cbm_mask.bit_length())))
            shown.append(f"{domain}={''.join(_use(bit, cache.shareable_bits, used) for bit in bits)}")
        return ";".join(shown)


def _use(bit: int, hardware: int, used: dict[str, int]) -> str:
    if bit & hardware:
        return "X" if bit & used[SHAREABLE] else "H"
    if bit & used[SHAREABLE]:
        return "S"
    return "E" if bit & used[EXCLUSIVE] else "0"


def _of_cache(name: str, cache: Cache) -> list[Control]:
    if not cache.cdp:
        return [Control(name, cache, cache.num_closids)]
    code = Control(f"{name}CODE", cache, cache.num_closids // 2)
    data = Control(f"{name}DATA", cache, cache.num_closids // 2, peer=code)
    code.peer = data
    return [code, data]


def _free_mask(control: Control, cache: Cache, domain: int, closid: int, modes: Modes) -> int:
    mask = used = cache.shareable_bits
    for other, mode in modes.of.items():
        if other != closid:
            taken = control.values[other, domain]
            if control.peer is not None:
                taken |= control.peer.values[other, domain]
            used |= taken
            if mode == SHAREABLE:
                mask |= taken
    mask |= cache.cbm_mask & ~used
    mask = _first_run(mask)
    if mask.bit_count() < cache.min_cbm_bits:
        raise Refused(errno.ENOSPC, f"No space on {control.name}:{domain}")
    return mask


def _first_run(mask: int) -> int:
    """Return the lowest bits that are in a row."""
    lowest = mask & -mask
    return mask & ~(mask + lowest) if mask else 0


def _stage(control: Control, text: str, closid: int, modes: Modes, staged: dict[tuple[str, int], int]) -> None:
    rest: str | None = text
    while rest:
        item, separator, after = rest.partition(";")
        rest = after if separator else None
        number, equals, value = item.partition("=")
        domain = _number(number, 10)
        if not equals or domain is None:
            raise Refused(errno.EINVAL, "Missing '=' or non-numeric domain")
        if domain not in control.resource.domains:
            raise Refused(errno.EINVAL)
        if (control.name, domain) in staged:
            raise Refused(errno.EINVAL, f"Duplicate domain {domain}")
        value = value.strip()
        if isinstance(control.resource, Cache):
            staged[control.name, domain] = mask = _mask(value, control.resource)
            if _overlaps(control, domain, mask, closid, modes, exclusive=True):
                raise Refused(errno.EINVAL, "Overlaps with exclusive group")
            if modes.of[closid] == EXCLUSIVE and _overlaps(control, domain, mask, closid, modes, exclusive=False):
                raise Refused(errno.EINVAL, "Overlaps with other group")
        elif control.resource.mbps:
            control.values[closid, domain] = _bandwidth(value, control.resource)  # at once, whatever follows
        else:
            staged[control.name, domain] = _bandwidth(value, control.resource)


def _mask(text: str, cache: Cache) -> int:
    value = _number(text, 16)
    if value is None:
        raise Refused(errno.EINVAL, f"Non-hex character in the mask {text}")
    if (cache.min_cbm_bits > 0 and value == 0) or value > cache.cbm_mask:
        raise Refused(errno.EINVAL, "Mask out of range")
    run = _first_run(value)
    if not cache.sparse_masks and run != value:
        raise Refused(errno.EINVAL, f"The mask {value:x} has non-consecutive 1-bits")
    if run.bit_count() < cache.min_cbm_bits:
        raise Refused(errno.EINVAL, f"Need at least {cache.min_cbm_bits} bits in the mask")
    return value


def _bandwidth(text: str, resource: MemoryBandwidth) -> int:
    value = _number(text, 10)
    if value is None or value > _MBPS_MAX:
        raise Refused(errno.EINVAL, f"Invalid MB value {text}")
    if resource.mbps:
        return value
    if not resource.min_bandwidth <= value <= resource.max_bandwidth:
        limits = f"[{resource.min_bandwidth},{resource.max_bandwidth}]"
        raise Refused(errno.EINVAL, f"MB value {value} out of range {limits}")
    return -(-value // resource.bandwidth_gran) * resource.bandwidth_gran


def _overlaps(control: Control, domain: int, mask: int, closid: int, modes: Modes, *, exclusive: bool) -> bool:
    assert isinstance(control.resource, Cache)
    if not exclusive and mask & control.resource.shareable_bits:
        return True
    controls = [control] if control.peer is None else [control, control.peer]
    return any(
        mask & item.values[other, domain]
        for item in controls
        for other, mode in modes.of.items()
        if other != closid and (not exclusive or mode == EXCLUSIVE)
    )


def _number(text: str, base: int) -> int | None:
    """Return what kstrtoul() reads: digits alone, perhaps after a sign, for base 16 also after 0x; None otherwise."""
    digits = text.removeprefix("+").removesuffix("\n")
    if base == 16 and digits[:2].lower() == "0x":
        digits = digits[2:]
    allowed = "0123456789abcdefABCDEF" if base == 16 else "0123456789"
    if not digits or any(digit not in allowed for digit in digits) or int(digits, base) > _ULONG_MAX:
        return None
    return int(digits, base)
