"""What the files of a bundle were held to, in lines."""

from quatrain.exporter.commands.file_facts import describe_comparisons


def test_what_is_left_out_comes_first_and_together() -> None:
    part, ends = "size, time and header", "size, time, first and last MiB"
    compared = {"graph": "sha256", "a": part, "b": part, "c": part, "d.pt": ends}
    assert describe_comparisons(compared).splitlines() == [
        f"  a and 2 more: {part} only (export with --hash-weights to compare all of them)",
        f"  d.pt: {ends} only (export with --hash-weights to compare all of it)",
        "  1 file: SHA-256",
    ]
    assert describe_comparisons({}) == ""
