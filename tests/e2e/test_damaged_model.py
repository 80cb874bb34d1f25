"""A model that computes NaN is refused by name, instead of answering with the first token."""

import pytest
from server_process import ServerProcess

from damaged_bundle import damaged
from phi4mm import ModelFileError, Phi4MM
from phi4mm.cli.main import main


@pytest.fixture(scope="module")
def broken(tmp_path_factory, tiny_path):
    return damaged(tiny_path, tmp_path_factory.mktemp("broken") / "bundle", "output_norm.weight")


@pytest.mark.parametrize("flags", [(), ("--temp", "1"), ("--temp", "1", "--top-k", "40")])
def test_run_names_the_file(broken, capsys, flags):
    assert main(["run", "-m", str(broken), "-t", "1", "-p", "Hello", *flags]) == 2
    out, err = capsys.readouterr()
    assert out.strip() == ""
    assert "Q8_0.gguf: computes NaN or infinite logits: some weights are damaged" in err


def test_the_python_interface_raises_it_each_time(broken):
    with Phi4MM(broken) as model:
        for _ in range(2):
            with pytest.raises(ModelFileError, match="computes NaN"):
                next(model.generate_raw("Hello"))


def test_a_server_says_so_and_lives(broken):
    server = ServerProcess("-m", broken, "-np", "2")
    try:
        server.wait_ready()
        engine = server.engine_pid
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        for _ in range(2):
            status, answer, _ = server.request("/v1/chat/completions", body)
            assert status == 500
            assert "computes NaN or infinite logits" in answer["error"]["message"]
        assert server.n_busy() == 0
        assert server.engine_pid == engine
        assert server.request("/health")[0] == 200
    finally:
        server.stop()
