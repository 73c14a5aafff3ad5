# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The examples, small, and what they promise: serve.py and serve.c write what the whole model would."""
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import framework

torch = framework("torch")

import nsa  # noqa: E402
from nsa._library import find_library  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = TREE / "examples"
PROMPTS = [b"x", b"Once upon a time", b"long " * 70, b"exactly forty-eight bytes is one chunk of a prompt!"[:48],
           b"\\ \xc3\xa9 \x01", b"p" * 64, b"two pages and a bit of the third one: " * 4]
NEW = 16


def run(*words, feed=None):
    done = subprocess.run([str(word) for word in words], input=feed, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()


def python(script, *words, **more):
    return run(sys.executable, EXAMPLES / script, *words, **more)


def original(text):
    """Undoes what the engines do to print bytes."""
    return re.sub(rb"\\x(..)", lambda m: bytes([int(m[1], 16)]), text.encode())


def losses_of(out):
    return {name: (float(last), float(first)) for name, last, first in
            re.findall(r"^(dense|sparse) +loss ([0-9.]+) \(at first ([0-9.]+)\)", out, re.M)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A weights file, and what train.py said."""
    framework("transformers")
    path = tmp_path_factory.mktemp("train") / "weights"
    return path, python("train.py", "--small", "--save", path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    path = tmp_path_factory.mktemp("random") / "weights"
    python("weights.py", path)
    return path


def test_train(trained):
    losses = losses_of(trained[1])
    assert set(losses) == {"dense", "sparse"} and all(last < first - 0.2 for last, first in losses.values()), trained[1]


def serve(path, *options):
    texts = [original(line) for line in python("serve.py", "--small", *options, path, feed=b"\n".join(PROMPTS)).splitlines()]
    assert [text[:-NEW] for text in texts] == PROMPTS
    return texts


def whole_model(path):
    """The model of a weights file in transformers, without a cache of libnsa."""
    import nsa.integrations.huggingface as door
    sys.path.insert(0, str(EXAMPLES))
    import weights
    transformers = framework("transformers")
    door.register()
    m, tensors = weights.load(path)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=m["width"], intermediate_size=m["ffn"], num_hidden_layers=m["layers"],
        num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"], head_dim=m["dim"], rms_norm_eps=m["eps"],
        max_position_embeddings=2048, rope_parameters=dict(rope_type="default", rope_theta=m["theta"]),
        attn_implementation="nsa")
    config.nsa = dict(compress=dict(block=m["block"], stride=m["stride"]), select=dict(block=m["select"], count=m["count"]),
                      window=m["window"])
    model = transformers.LlamaForCausalLM(config)
    door.add_gates(model)
    shapes = dict(weights.shapes(m))
    model.load_state_dict({name: torch.tensor(x).view(shapes[name]) for name, x in tensors.items()})
    return model.eval()


@pytest.mark.parametrize("kind", ["drawn", "trained"])
def test_serve_writes_what_the_whole_model_would(kind, request, device):
    if device != "cpu" or torch.cuda.is_available():
        pytest.skip("ties of bfloat16 logits")
    path = request.getfixturevalue(kind)
    path = path[0] if kind == "trained" else path
    model = whole_model(path)
    for prompt, text in zip(PROMPTS, serve(path)):
        with torch.no_grad():
            logits = model(torch.tensor([list(text[:-1])])).logits[0]
        assert bytes(logits.argmax(-1).tolist())[len(prompt) - 1:] == text[len(prompt):]


def test_serve_does_not_depend_on_the_batch(drawn):
    if torch.cuda.is_available():
        pytest.skip("ties of bfloat16 logits")
    assert serve(drawn) == serve(drawn, "--rows", 1, "--pages", 6) == serve(drawn, "--rows", 7, "--pages", 99)


def test_serve_in_c_writes_the_same(drawn, trained, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("serve.py computes in bfloat16 on a GPU, serve.c in float32 on the CPU")
    library = pathlib.Path(find_library())
    program = tmp_path / "serve"
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-I", TREE / "include", EXAMPLES / "serve.c", library, "-lm",
        f"-Wl,-rpath,{library.parent}", "-o", program)
    for path in drawn, trained[0]:
        feed = b"\n".join(PROMPTS)
        assert run(program, "--small", path, feed=feed) == python("serve.py", "--small", path, feed=feed)


def test_serve_without_weights():
    assert len(python("serve.py", "--small", feed=b"a\n\nb\n").splitlines()) == 2


@pytest.mark.parametrize("damage", [lambda raw: raw[:9000], lambda raw: raw + b"x", lambda raw: b"other" + raw])
def test_damaged_weights(drawn, damage, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(damage(drawn.read_bytes()))
    done = subprocess.run([sys.executable, EXAMPLES / "serve.py", path], input=b"x", capture_output=True)
    assert done.returncode == 1 and b"ValueError" in done.stderr
