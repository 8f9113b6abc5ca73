"""The quickstart runs and says where its tokens came from."""

import ast

from samples import quickstart


def test_quickstart(capsys):
    quickstart.main()
    output = capsys.readouterr().out
    lines = output.splitlines()
    first = ast.literal_eval(lines[0])
    assert first
    assert lines[1].startswith("  exits [")
    # The same prompt and seed: streamed, it is the same text.
    assert f"stream:{first}\n" in output
    assert "second turn, over the same cache: '" in output
