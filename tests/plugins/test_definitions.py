"""What every definition promises: the engine has each kernel, and each byte, that a call needs."""

from dataclasses import replace
from math import prod
from random import Random

import pytest
from tests.plugins.sampled_shapes import SAMPLERS, Sample

from quatrain.plugins.definition import UnsupportedError
from quatrain.plugins.launch import WORKSPACE, Launch, Pointer
from quatrain.plugins.registry import DEFINITIONS, load_definition

CASES = [(name, seed) for name in SAMPLERS for seed in range(24)]
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1}
MAX_VARIANTS = 8


def draw(name: str, seed: int) -> Sample:
    return SAMPLERS[name](Random(f"{name} {seed}"))


def plan(found: Sample, call: list[tuple[int, ...]], num_multiprocessors: int) -> list[Launch]:
    return found.definition.plan([f.dtype for f in found.facts], call, num_multiprocessors)


def test_every_definition_is_sampled():
    assert SAMPLERS.keys() == DEFINITIONS.keys()


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_the_engine_has_every_kernel_that_a_call_asks_for(name, seed):
    found = draw(name, seed)
    found.definition.check(found.facts)
    variants = found.definition.list_variants(found.facts)

    assert 0 < len(variants) <= MAX_VARIANTS
    for call in found.calls:
        for cores in (1, 82, 108):
            for launch in plan(found, call, cores):
                assert launch.variant in variants
                assert len(launch.arguments) == len(launch.variant.types)
                assert all(1 <= size < 2**31 for size in launch.grid[:1])
                assert all(1 <= size < 2**16 for size in launch.grid[1:])


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_pointers_keep_to_their_tensors_and_promises(name, seed):
    found = draw(name, seed)
    dtypes = [fact.dtype for fact in found.facts]
    workspace = found.definition.count_workspace_bytes(found.facts)
    for call in found.calls:
        sizes = [ITEM_BYTES[d] * prod(s) for d, s in zip(dtypes, call, strict=True)]
        for output in found.definition.describe_outputs(dtypes, [len(s) for s in call]):
            dims = (d if isinstance(d, int) else call[d[0]][d[1]] for d in output.shape)
            sizes.append(ITEM_BYTES[output.dtype] * prod(dims))
        for launch in plan(found, call, 82):
            for argument, kind in zip(launch.arguments, launch.variant.types, strict=True):
                if isinstance(argument, Pointer):
                    is_scratch = argument.tensor == WORKSPACE
                    size = workspace if is_scratch else sizes[argument.tensor]
                    assert 0 <= argument.offset_bytes <= size
                    assert not kind.endswith(":16") or argument.offset_bytes % 16 == 0
                elif kind.endswith(":16"):
                    assert argument % 16 == 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_shapes_are_planned_alike(name):
    found = draw(name, 0)
    again = type(found.definition)(
        **{each: getattr(found.definition, each) for each in load_definition(name).attributes}
    )
    assert again == found.definition and hash(again) == hash(found.definition)
    for call in found.calls:
        first = plan(found, call, 82)
        assert first == plan(replace(found, definition=again), call, 82)
        hash(tuple(first))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_types_of_outputs_are_those_that_were_declared(name):
    found, factory = draw(name, 0), load_definition(name)
    dtypes = [fact.dtype for fact in found.facts]
    outputs = found.definition.describe_outputs(dtypes, [len(fact.shape) for fact in found.facts])
    declared = [dtypes[of] if isinstance(of, int) else of for of in factory.output_dtypes]
    assert [output.dtype for output in outputs] == declared
    assert len(outputs) == factory.num_outputs


@pytest.mark.parametrize("name", SAMPLERS)
def test_types_without_a_kernel_are_refused(name):
    found = draw(name, 0)
    for index in range(len(found.facts)):
        mixed = list(found.facts)
        mixed[index] = replace(
            mixed[index], dtype="bool" if mixed[index].dtype != "bool" else "int64"
        )
        with pytest.raises(UnsupportedError):
            found.definition.check(mixed)
