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
    return both(*words, feed=feed)[0]


def both(*words, feed=None):
    """What a program writes, and what it writes on the standard error."""
    done = subprocess.run([str(word) for word in words], input=feed, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode(), done.stderr.decode()


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


SYSTEM = b"You are an engine; every prompt of yours begins with these words, which take more than one page. "
ALIKE = [SYSTEM + b"One.", SYSTEM + b"Two.", b"x", SYSTEM + b"One.", b"long " * 30, SYSTEM]


def engine(path, *options, new=24):
    """The texts behind ALIKE and the figures that serve.py reports."""
    out, figures = both(sys.executable, EXAMPLES / "serve.py", "--new", new, *options, path, feed=b"\n".join(ALIKE))
    texts = [original(line) for line in out.splitlines()]
    assert [text[:-new] for text in texts] == ALIKE
    found = re.search(r"(\d+) prompts, (\d+) steps with prompts, (\d+) of decoding alone, .*\n"
                      r"(\d+) tokens in pages of others, (\d+) of (\d+) drafted tokens accepted\n"
                      r"attention of all layers: (?:\d+ tokens/s|not timed) in steps .*, (?:\d+ tokens/s|not timed) in .*\n"
                      r"(\d+) steps compared with the CPU device, off by at most (\S+) but for (\d+) of (\d+) outputs\n"
                      r"cache: (\d+) bytes, K and V in (\w+), entries in (\w+); all in (\w+): (\d+) bytes\n", figures)
    names = ("prompts", "prefills", "decodes", "shared", "accepted", "drafted", "compared", "error", "beyond", "outputs",
             "bytes", "kv", "cmp", "plain", "plain_bytes")
    kinds = dict(error=float, kv=str, cmp=str, plain=str)
    return texts, {name: kinds.get(name, int)(x) for name, x in zip(names, found.groups())}


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


def test_serve_with_shared_prefixes_and_drafts(trained):
    """On a GPU with graphs: every step is compared with the CPU device, but texts may differ by ties of logits."""
    path = trained[0]
    plain, figures = engine(path, "--drafts", 0, "--compare", 0, "--rows", 1, "--chunk", 500)
    assert figures["drafted"] == figures["compared"] == 0 and figures["prompts"] == 6
    alone = figures["decodes"]
    for options in ((), ("--eager",), ("--rows", 6), ("--rows", 3, "--chunk", 7, "--drafts", 2), ("--rows", 6, "--pages", 4),
                    ("--drafts", 15, "--rows", 1)):
        texts, figures = engine(path, "--compare", 1, *options)
        assert figures["compared"] == figures["prefills"] + figures["decodes"]
        assert figures["error"] < (3e-2 if torch.cuda.is_available() else 1e-5) and figures["outputs"] > 0
        assert figures["shared"] >= 64 and figures["shared"] <= 3 * len(SYSTEM) + 24
        assert figures["bytes"] == figures["plain_bytes"] and figures["kv"] == figures["cmp"] == figures["plain"]
        assert figures["drafted"] > 0
        if not torch.cuda.is_available():
            assert texts == plain and figures["beyond"] == 0, options
            assert 0 < figures["accepted"] < figures["drafted"] and figures["decodes"] < alone


@pytest.mark.parametrize("options", [("--kv", "fp8"), ("--kv", "fp8", "--cmp", "fp8")], ids=["raw", "all"])
def test_serve_with_a_cache_in_fp8(options, drawn):
    """In whatever steps a text comes about, the cache has the same codes, and the text is the same."""
    sys.path.insert(0, str(EXAMPLES))
    from model import Model
    from nsa.integrations.engine import block_bytes
    gpu = torch.cuda.is_available()
    plain, codes = "bfloat16" if gpu else "float32", "float8_e4m3fn"
    texts = []
    for more in ("--drafts", 0, "--rows", 1, "--chunk", 500), (), ("--eager", "--rows", 6, "--drafts", 15, "--chunk", 33):
        text, figures = engine(drawn, *options, "--compare", 1, *more, new=10)
        assert figures["compared"] == figures["prefills"] + figures["decodes"] and figures["outputs"] > 0
        assert figures["error"] < (3e-2 if gpu else 1e-5) and figures["shared"] >= 64
        assert (figures["kv"], figures["cmp"], figures["plain"]) == (codes, codes if "--cmp" in options else plain, plain)
        if not gpu:
            texts.append(text)
            assert figures["beyond"] == 0
    assert all(text == texts[0] for text in texts)
    model = Model(drawn, "cpu")
    of = lambda **more: 64 * model.m["layers"] * block_bytes(model.config, 64, dtype="bf16" if gpu else "f32", **more)
    stored = dict(zip(("kv_dtype", "cmp_dtype"), ["e4m3"] * (len(options) // 2)))
    assert figures["bytes"] == of(**stored) < figures["plain_bytes"] == of()


def test_scales_of_a_cache_in_fp8(drawn):
    """The first prompt's greatest value of each layer and KV head becomes the code 56, so that later ones have room."""
    sys.path.insert(0, str(EXAMPLES))
    from model import Model
    from scales import scale_of, scales_of
    x = torch.zeros(5, 3, 16)
    x[2, 0, 7], x[4, 2, 1] = -7, 1e-3
    assert torch.allclose(scale_of(x), torch.tensor([7 / 56, 1, 1e-3 / 56]), atol=0)
    model, prompt, found = Model(drawn, "cpu"), PROMPTS[1], []

    def attention(layer, q, k, v, gates):
        found.append((k, v))
        return nsa.attention(q, k, v, gates, config=model.config)

    model(torch.tensor(list(prompt)), torch.arange(len(prompt)), attention)
    scales = scales_of(model, prompt)
    assert len(scales) == model.m["layers"]
    for pair, scale in zip(found, scales):
        for name, x in zip(("k0", "v0"), pair):
            codes = (x / scale[name][:, None]).to(torch.float8_e4m3fn).float()
            assert scale[name].shape == (2,) and codes.abs().amax((0, 2)).tolist() == [56, 56]


def test_graphs_get_the_tokens_of_the_step(trained):
    """Of the first bytes behind half of the prompts, at least: in bfloat16 other batch sizes give other ties."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    graphs, eager = (engine(trained[0], "--drafts", 2, *options, new=4)[0] for options in ((), ("--eager",)))
    assert 2 * sum(a == b for a, b in zip(graphs, eager)) >= len(eager)


def test_serve_compares_every_nth_step(drawn):
    for every in 7, 100:
        figures = engine(drawn, "--compare", every)[1]
        assert figures["compared"] == (figures["prefills"] + figures["decodes"]) // every


SPOILS = ["o", "k", "k0", "v_cmp", "k_cmp", "block_table", "kv_len"]


@pytest.mark.parametrize("spoil, codes", [*[(spoil, codes) for codes in ("", "kv", "both") for spoil in SPOILS],
                                          ("v0_scale", "kv"), ("k_cmp_scale", "both")])
def test_the_comparison_finds_a_wrong_step(spoil, codes, device):
    sys.path.insert(0, str(EXAMPLES))
    from compare import LIMIT, Mismatch, compare
    config = nsa.Config(heads=4, kv_heads=2, head_dim=32, compress=dict(block=16, stride=8), select=dict(block=16, count=4),
                        window=24)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    g = torch.Generator().manual_seed(1)
    shapes = (4, 32), (2, 32), (2, 32), (4, 3)
    draw = lambda n: [torch.randn(n, *shape, generator=g).to(device, dtype) for shape in shapes]
    e4m3 = torch.float8_e4m3fn
    scales = dict(v0=torch.tensor([0.05, 0.07]), k_cmp=0.02)  # and those of k0 and v_cmp are absent
    cache = nsa.KVCache(config, 1, 20, 16, dtype=dtype, device=device, kv_dtype=e4m3 if codes else None,
                        cmp_dtype=e4m3 if codes == "both" else None,
                        scales={name: x for name, x in scales.items() if codes == "both" or (codes and name == "v0")})
    batch = cache.begin("ab", [40, 80])
    cache.append(0, batch, *draw(120)[1:3])
    batch = cache.begin("ab", [1, 30])
    q, k, v, gates = draw(31)
    cache.append(0, batch, k, v)
    kept = [(q, k, v, gates, cache.attend(0, batch, q, gates))]
    result = compare(cache, batch, kept)
    assert result.error <= LIMIT[dtype] and result.outputs == 31 * 2
    if spoil == "o":
        kept[0][4][:20] *= 1.1
    elif spoil == "k":
        k[3, 0, 5] += 1
    elif spoil == "block_table":
        batch.block_table[0, :2] = batch.block_table[0, :2].flip(0)
    elif spoil == "kv_len":
        batch.kv_len[0] -= 1
    elif spoil.endswith("scale"):
        cache.layers[0][spoil] *= 1.1
    else:
        page = 2 if spoil == "k_cmp" else 5  # entries of the step before, and of this one
        x = cache.layers[0][spoil]
        place = batch.block_table[1, page].item(), -1
        if x.dtype == e4m3:
            x.view(torch.uint8)[place] ^= 1  # the next code
        else:
            x[place] *= 1.1
    with pytest.raises(Mismatch, match="outputs differ" if spoil == "o" else "layer 0: the cache's [kv](0|_cmp) "):
        compare(cache, batch, kept)


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


@pytest.mark.parametrize("options", [("--drafts", "16"), ("--rows", "0"), ("--compare", "-1")])
def test_serve_refuses(options):
    done = subprocess.run([sys.executable, EXAMPLES / "serve.py", "--small", *options], input=b"x", capture_output=True)
    assert done.returncode == 2 and f"argument {options[0]}: {options[1]} is not".encode() in done.stderr


@pytest.mark.parametrize("options, says", [(("--kv", "fp9"), b"argument --kv: invalid choice: 'fp9'"),
                                           (("--cmp", "fp8"), b"--cmp fp8 is given without --kv fp8")])
def test_serve_refuses_caches(options, says):
    done = subprocess.run([sys.executable, EXAMPLES / "serve.py", "--small", *options], input=b"x", capture_output=True)
    assert done.returncode == 2 and says in done.stderr


@pytest.mark.parametrize("damage", [lambda raw: raw[:9000], lambda raw: raw + b"x", lambda raw: b"other" + raw])
def test_damaged_weights(drawn, damage, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(damage(drawn.read_bytes()))
    done = subprocess.run([sys.executable, EXAMPLES / "serve.py", path], input=b"x", capture_output=True)
    assert done.returncode == 1 and b"ValueError" in done.stderr


def test_minimax_m3(tmp_path):
    """The tokens and the logits of transformers' own attention, by both caches; of a model that is loaded, too."""
    framework("transformers")
    sys.path.insert(0, str(EXAMPLES))
    import minimax_m3
    minimax_m3.small().save_pretrained(tmp_path)
    for model in (), (tmp_path,):
        out = python("minimax_m3.py", "--prompt", 150, "--new", 20, *model)
        found = re.findall(r"^libnsa, .*: (\d+) of 40 tokens the same, logits off by at most (\S+), ", out, re.M)
        assert len(found) == 2 and "calls of sparse layers: 120 libnsa\n" in out, out
        # Logits reach 4.7, and one block chosen otherwise moves one by 0.2. Sums in float32 moved one by 2e-6 on most
        # processors and by 3e-4 on one. On a GPU logits of bfloat16 tie.
        if not torch.cuda.is_available():
            assert all(int(same) == 40 and float(error) < 2e-3 for same, error in found), out


def test_minicpm4():
    """What is written over pages is what the whole forward writes; the shipped configuration loads."""
    for options in ("--prompt", 230), ("--full", "--prompt", 70, "--new", 2, "--layers", 1):
        out = python("minicpm4.py", *options)
        same, new, error = re.fullmatch(r"(\d+) of (\d+) tokens are those of the whole forward, logits off by at most (\S+)\n",
                                        out).groups()
        assert torch.cuda.is_available() or same == new and float(error) < 1e-4, out  # ties of bfloat16 logits


def test_ranks_on_two_processes():
    """Two ranks have one rank's results: the program compares them."""
    out = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, EXAMPLES / "ranks.py", "--cpu", "--check",
              "--tokens", 1600, "--repeats", 1)
    assert "1600 tokens and 4 heads on 2 ranks" in out and "have one rank's bits" in out


def test_ranks_in_two_groups():
    """Each group of two ranks has one of two KV heads, and its tokens are divided."""
    out = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 4, EXAMPLES / "ranks.py", "--cpu", "--check",
              "--tokens", 1600, "--repeats", 1, "--groups", 2)
    assert out.count("1600 tokens and 2 heads on 2 ranks") == 2 and "have one rank's bits" in out
