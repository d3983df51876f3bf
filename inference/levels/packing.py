"""In which forms a model's linears are packed for the C extension, as its options say."""

from __future__ import annotations

from inference.cpu.packed import Packs
from inference.kernels.arena import Arena
from inference.kernels.native import Library, WeightKind
from inference.levels.options import Options
from inference.models.linears import NativePack, native_pack


def exact_pack(options: Options, library: Library) -> NativePack:
    """Return what packs linears so that they lose nothing."""
    return native_pack(library, None, narrow=options.narrow, round_inputs=False, compress=options.compress)


def packs_of(options: Options, library: Library) -> Packs:
    """Return how linears are packed to stay, and how they are to be tried."""
    routers = exact_pack(options, library)
    if not options.rounds_linears and options.group is None:
        return Packs(final=routers, exact=None, routers=routers)
    # What a layer is only tried with must not lie beside what stays, or its memory would never go back
    exact = native_pack(library, None, narrow=options.narrow, round_inputs=False, arena=Arena())
    if not options.rounds_linears:
        return Packs(routers, exact, routers, options.group)
    kind = WeightKind.INT8 if options.quantize else WeightKind.BFLOAT16
    final = native_pack(
        library, kind, narrow=True, round_inputs=options.round_inputs, compress=options.compress
    )
    products = routers if options.quantize else final  # few numbers of each row are much to a latent
    return Packs(final, exact, routers, options.group, products)
