"""Settings read from flags and environment: flag before environment before default, and nothing ignored."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handlers.settings.contradictions import check as check
from handlers.settings.row import ORIGIN, Group, Setting, SettingsError, Support
from handlers.settings.table import SETTINGS, Settings

SHOWN = 60  # characters of a value that is refused
PREFIX = "PARLEY_"  # variables that are ours alone, so that a misspelt one can be told
# what Kubernetes sets in every container beside a service named parley..., and what the tests are told
NO_SETTINGS = re.compile(
    r"PARLEY(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
    r"|PARLEY_(TEST|CLIENT|CI)_\w+|PARLEY_TARGET"  # the last is deploy/compose.yaml's
)
# its PARLEY_PORT is told from a misspelt PORT by the value, as is the PROMETHEUS_PORT of a service so named
LINK_NAME, LINK = re.compile(r"PARLEY(_\w+)?_PORT"), re.compile(r"(tcp|udp|sctp)://\S+")
USER = re.compile(r"(?<=//)[^/\s]*@")  # of a URL: a password may stand there
GPUS = Path("/proc/driver/nvidia/gpus")
Pairs = Sequence[tuple[str, str]]  # (flag, text)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given."""

    setting: Setting[Any]
    name: str  # the flag or the variable
    raw: str

    def __str__(self) -> str:
        shown = "..." if self.setting.secret else self.raw
        return f"{self.name} {shown}" if self.name.startswith("-") else f"{self.name}={shown}"

    @property
    def remedy(self) -> str:
        """Return how to be rid of it."""
        return "leave it out" if self.name.startswith("-") else "unset it"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read."""

    settings: Settings
    given: tuple[Given, ...]
    warnings: tuple[str, ...]  # one line each, to be logged


def read(flags: Mapping[str, Pairs], environment: Mapping[str, str], *, serving: bool = True) -> Reading:
    """Return the settings from flags, as `add_arguments` leaves them, and variables; raises SettingsError.

    Everything given is honoured, or warned of, or refused. What is only read to download a model for a
    server, perhaps elsewhere, or to be a shard of one, isn't `serving`: no effect is expected of what is for
    a server.
    """
    _refuse_unknown_variables(environment)
    chosen: dict[str, Given] = {}
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for setting in SETTINGS:
        given = _given(setting, flags.get(setting.attribute, ()), environment, warnings)
        if given is None:
            continue
        value = _parse(given)
        if _beside_the_point(given, value, warnings):
            continue
        chosen[setting.attribute], values[setting.attribute] = given, value
    settings = Settings(**values)
    if "compute_type" not in values and settings.replicas == 1:  # each of several has a card of its own
        settings = with_card(settings)
    check(settings)
    warnings += _without_effect(chosen, settings) if serving else []
    return Reading(settings, tuple(chosen.values()), tuple(warnings))


def _without_effect(chosen: Mapping[str, Given], settings: Settings) -> list[str]:
    """Return a warning for each value that asks for something, and has no effect beside the others."""
    return [
        f"{given} has no effect here: {given.setting.effect.otherwise}"
        for attribute, given in chosen.items()
        if given.setting.effect is not None
        and getattr(settings, attribute) not in (given.setting.default, *given.setting.effect.neutral)
        and not given.setting.effect.holds(settings)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser a flag for each row; a flag's value stays text, for `read` to judge."""
    for group in Group:
        section = parser.add_argument_group(group)
        for setting in SETTINGS:
            if setting.group is group and setting.names:
                _add_argument(section, setting)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a question that offers the nearest spelling, or nothing."""
    close = difflib.get_close_matches(name, names, 1, 0.7)
    return f"; did you mean {close[0]}?" if close else ""


def flag_names() -> tuple[str, ...]:
    """Return every flag there is."""
    return tuple(name for setting in SETTINGS for name in setting.names)


def switch_names() -> tuple[str, ...]:
    """Return the flags that may stand without a value."""
    return tuple(name for setting in SETTINGS if setting.switch for name in setting.names)


class _Note(argparse.Action):
    """Keep the pair of flag and text; a switch that stands alone is true, and false after --no-."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        alone = "false" if self.nargs == 0 else "true"
        pair = (option_string, alone if values in (None, []) else values)
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), pair])


def _add_argument(section: argparse._ArgumentGroup, setting: Setting[Any]) -> None:
    default = setting.show(setting.default)
    about = f"{setting.help} ({default})" if default and not setting.switch else setting.help
    if setting.support is not Support.HONOURED:
        about += "; no effect" if setting.support is Support.ACCEPTED else "; not supported yet"
    names = (setting.short, *setting.names) if setting.short else setting.names
    common: dict[str, Any] = {"dest": setting.attribute, "default": argparse.SUPPRESS, "action": _Note}
    metavar = setting.metavar or setting.unit.upper() or setting.attribute.rpartition("_")[2].upper()
    if not setting.switch:
        section.add_argument(*names, metavar=metavar, help=about.replace("%", "%%"), **common)
        return
    section.add_argument(*names, nargs="?", metavar="BOOL", help=about.replace("%", "%%"), **common)
    if setting.default is True:
        off = "--no-" + setting.names[0].removeprefix("--")
        section.add_argument(off, nargs=0, help=f"the same as {setting.names[0]} false", **common)


def _given(
    setting: Setting[Any], flags: Pairs, environment: Mapping[str, str], warnings: list[str]
) -> Given | None:
    """Return the value that counts, of all that were given for one setting."""
    noted = _flag(setting, flags)
    found = [Given(setting, name, environment[name]) for name in setting.variables if name in environment]
    for given in found:
        if not given.raw and not setting.empty_is_unset:
            raise SettingsError(f"{given.name} is empty: give it a value, or unset it")
    found = [given for given in found if given.raw and not _is_link(given, warnings)]
    _refuse_two_names(setting, [*noted, *found])
    if found and found[0].name == setting.winning_env:
        warnings += [f"{given} gives way to {found[0]}" for given in noted if given.raw != found[0].raw]
        return found[0]
    return (*noted, *found, None)[0]


def _is_link(given: Given, warnings: list[str]) -> bool:
    """Return whether Kubernetes set the variable, for a service whose name begins it; warn if so."""
    service, _, last = given.name.rpartition("_")
    linked = bool(service) and last == "PORT" and LINK.fullmatch(given.raw) is not None
    if linked:
        named = service.lower().replace("_", "-")
        warnings.append(f"{given} is Kubernetes' address of the service {named!r}, and no setting")
    return linked


def _flag(setting: Setting[Any], flags: Pairs) -> list[Given]:
    if not flags:
        return []
    if isinstance(setting.default, tuple):  # may be repeated
        return [Given(setting, flags[0][0], ",".join(value for _, value in flags))]
    if len(flags) > 1:
        raise SettingsError(f"{flags[1][0]} is given twice: leave one of them out")
    return [Given(setting, *flags[0])]


def _refuse_two_names(setting: Setting[Any], found: Sequence[Given]) -> None:
    """Refuse, say, MAX_INPUT_TOKENS beside --max-input-length: which one is meant?"""
    if not setting.exclusive or not found:
        return
    meanings = {given.name.lstrip("-").replace("-", "_").upper(): given for given in found}
    if len(meanings) > 1:
        first, second, *_ = meanings.values()
        raise SettingsError(f"{first} and {second} are the same setting: leave one of them out")


def _parse(given: Given) -> Any:
    try:
        return given.setting.parse(given.raw)
    except ValueError as error:
        instead = f"change it, or {given.remedy}"
        raise SettingsError(f"{given.name} {error}; it is {_shown(given)}: {instead}") from None


def _shown(given: Given) -> str:
    """Return the text that was given, the beginning of one without end."""
    if given.setting.secret:
        return "..."
    raw = USER.sub("...@", given.raw)
    return repr(raw if len(raw) <= SHOWN else f"{raw[:SHOWN]}...")


def _beside_the_point(given: Given, value: Any, warnings: list[str]) -> bool:
    """Return whether the value is to be left at its default; warn and refuse where it takes that."""
    setting = given.setting
    neutral = value == setting.default or value in setting.neutral
    if setting.support is Support.LATER and not neutral:
        hint = f" ({setting.reason})" if setting.reason else ""
        raise SettingsError(f"{given} is not supported yet by this version: {given.remedy}{hint}")
    if setting.support is Support.ACCEPTED and not neutral:
        warnings.append(f"{given} has no effect here: {setting.reason}")
    if given.name == "HOSTNAME" and not _is_address(given.raw):
        # containers put their own name there
        instead = f"listening on {setting.default}; --hostname takes any name"
        warnings.append(f"{given} is not an IP address: {instead}")
        return True
    if given.setting.attribute == "cors_allow_origin":
        odd = [origin for origin in value if not ORIGIN.fullmatch(origin)]
        hint = "write one as in https://app.example.org:8443"
        warnings += [f"{given} lets nobody in from {origin!r}, which is no origin: {hint}" for origin in odd]
    return setting.support is Support.LATER


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = [name for setting in SETTINGS for name in setting.variables]
    for name in sorted(environment):
        value = environment[name]
        if name.startswith(PREFIX) and name not in known and not _is_somebody_elses(name, value):
            bare = name.removeprefix(PREFIX)
            hint = f"; did you mean {bare}?" if bare in known else nearest(name, known)
            raise SettingsError(f"{name} is no setting{hint}")


def _is_somebody_elses(name: str, value: str) -> bool:
    linked = LINK_NAME.fullmatch(name) is not None and (not value or LINK.fullmatch(value) is not None)
    return linked or NO_SETTINGS.fullmatch(name) is not None


def with_card(settings: Settings) -> Settings:
    """Return settings whose `compute_type` is of this machine, unless another one was given."""
    default = Settings().compute_type
    if settings.compute_type != default:
        return settings
    return replace(settings, compute_type=_compute_type(settings.device, default))


def _compute_type(device: str, default: str) -> str:
    """Return TGI's `1-name-of-the-card`, from what the driver says; without a card, the default."""
    if device == "cpu":
        return default
    for information in sorted(GPUS.glob("*/information")):
        for line in information.read_text().splitlines():
            if line.startswith("Model:"):
                return "1-" + line.partition(":")[2].strip().lower().replace(" ", "-")
    return default
