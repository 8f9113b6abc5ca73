"""The quickstart runs and says where its tokens came from."""

from samples import quickstart


def test_quickstart(capsys):
    quickstart.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("exits [" in line for line in lines) == 2
    assert any(line.startswith("stream:") and len(line) > 20 for line in lines)
    assert lines[-1].startswith("second turn, over the same cache: '")
