"""The recipes of the sample models: text, formulas, and a smoke run of the command."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams
from samples.train.__main__ import main
from samples.train.bank_topk import (
    PREDICTOR,
    BankSettings,
    BankTopKLlama,
    Stage,
    StageSettings,
    add_predictors,
    mask_ranked,
    mask_straight_through,
    rank_banks,
    sparsify_post_hoc,
)
from samples.train.data import SHORT_PARAGRAPH, load_split
from samples.train.drafts import (
    MAX_DRAFT,
    PROMPT_LENGTH,
    DraftReport,
    cut_prompts,
    report_drafts,
)
from samples.train.evaluate import TextScore, report_exits, route_argmax, score_text
from samples.train.fabric import load_fabric
from samples.train.hilp import HilpLlama
from samples.train.latent import LatentLlama
from samples.train.llama import (
    DenseLlama,
    LanguageModel,
    LlamaSettings,
    Rope,
    apply_rope,
    build_rope,
)
from samples.train.load import check_tokenizer, find_checkpoint, load_weights
from samples.train.loop import LoopSettings
from samples.train.nextlat import NextLatLlama
from samples.train.nvium import NviumLlama, NviumSettings, chain_exit_probs, mean_depth, pull_even
from samples.train.recipes import BANKS, HILP, NEXTLAT, REFINE, STREAMS
from samples.train.streams import HiddenDecodingLlama, StreamSettings, expand_tables
from samples.train.tokenizer import encode_text

TINY = LlamaSettings(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4)
TINY_NVIUM = NviumSettings((1, 3), router_intermediate_size=8, pull_weight=2, compute_weight=0.3)
TINY_BANKS = BankSettings(bank_size=8, top_k=2, predictor_rank=3)
CHECKPOINTS = (
    "topics-dense",
    "topics-nvium",
    "topics-hidden-decoding",
    "topics-bank-topk",
    "topics-hilp",
)
TABLE = "model.scale_seq_embed_tokens_list.{}.weight"
COMMITTED = Path(__file__).parents[2] / "samples" / "checkpoints"


def build_named(name: str) -> DenseLlama | NviumLlama:
    settings = LlamaSettings()
    if name == "topics-hidden-decoding":
        return HiddenDecodingLlama(settings, STREAMS)
    if name == "topics-bank-topk":
        return BankTopKLlama(settings, BANKS)
    if name == "topics-hilp":
        return HilpLlama(settings, HILP)
    if name == "topics-nextlat":
        return NextLatLlama(settings, NEXTLAT)
    if name == "topics-nvium":
        return NviumLlama(settings, NviumSettings())
    return DenseLlama(settings)


def build_tiny() -> NviumLlama:
    torch.manual_seed(0)
    return NviumLlama(TINY, TINY_NVIUM)


def build_tiny_streams(num_streams: int, cross_stream_layers: tuple[int, ...]) -> DenseLlama:
    """Random weights, so no two streams are alike."""
    torch.manual_seed(0)
    return HiddenDecodingLlama(TINY, StreamSettings(num_streams, cross_stream_layers))


def draw_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]


def list_paragraphs(text: str) -> set[str]:
    joined = (" ".join(p.split()) for p in text.split("\n\n"))
    return {p for p in joined if len(p) >= SHORT_PARAGRAPH}


def test_heldout_paragraphs_are_not_trained_on() -> None:
    split = load_split()
    heldout = list_paragraphs(split.heldout)
    assert len(heldout) > 100
    assert not heldout & set().union(*map(list_paragraphs, split.documents))


def test_exit_probs_sum_to_one() -> None:
    model = build_tiny()
    exits = model.run_exits(*draw_tokens())
    assert exits.exit_probs.shape == (3, 2, 7)
    torch.testing.assert_close(exits.exit_probs.sum(dim=0), torch.ones(2, 7))
    first, second = exits.conditional_probs
    torch.testing.assert_close(exits.exit_probs[1], (1 - first) * second)


def test_mixture_matches_direct_computation() -> None:
    model, (tokens, targets) = build_tiny(), draw_tokens()
    exits = model.run_exits(tokens, targets)
    heads = []
    for state, adapter in zip(
        model.exit_states(tokens), [*model.early_adapters, model.final_adapter], strict=True
    ):
        heads.append((model.lm_head(state + adapter(state))).softmax(dim=-1))
    mixture = (exits.exit_probs[..., None] * torch.stack(heads)).sum(dim=0)
    torch.testing.assert_close(mixture.sum(dim=-1), torch.ones(2, 7))
    direct = mixture.gather(-1, targets[..., None]).squeeze(-1).log()
    torch.testing.assert_close(model.target_logprobs(tokens, targets), direct)


def test_loss_terms_follow_the_warmup() -> None:
    model, pair = build_tiny(), draw_tokens()
    exits, nll = model.run_exits(*pair), -model.target_logprobs(*pair).mean()
    even = ((exits.conditional_probs - torch.tensor([1 / 3, 1 / 2])[:, None, None]) ** 2).mean()
    depth = (exits.exit_probs.mean(dim=(1, 2)) * torch.tensor([0.25, 0.75, 1.0])).sum()
    warmup = TINY_NVIUM.warmup_ratio
    torch.testing.assert_close(model.compute_loss(*pair, warmup / 2), nll + 2 * even)
    torch.testing.assert_close(model.compute_loss(*pair, warmup), nll + 0.3 * depth)


def test_even_routers_give_even_shares() -> None:
    conditional = torch.tensor([1 / 4, 1 / 3, 1 / 2]).view(3, 1, 1)
    probs = chain_exit_probs(conditional)
    torch.testing.assert_close(probs.flatten(), torch.full((4,), 0.25))
    assert pull_even(conditional) == 0
    assert mean_depth(probs, torch.tensor([0.25, 0.5, 0.75, 1.0])).item() == pytest.approx(0.625)


def test_argmax_routing_goes_on_at_a_tie() -> None:
    conditional = torch.tensor([[0.5, 0.9, 0.1], [0.6, 0.9, 0.4]]).view(2, 1, 3)
    assert route_argmax(conditional).tolist() == [[1, 0, 2]]


def test_score_counts_every_token_once() -> None:
    model, ids = build_tiny(), torch.arange(300) % 32
    score = score_text(model, ids, num_bytes=600)
    windows = [ids[None, :256], ids[None, 256:]]
    nll = 0.0
    for window in windows:
        opened = torch.cat((torch.zeros(1, 1, dtype=torch.long), window[:, :-1]), dim=1)
        nll -= model.target_logprobs(opened, window).sum().item()
    assert score.perplexity == pytest.approx(torch.tensor(nll / 300).exp().item(), rel=1e-4)
    assert sum(report_exits(model, ids).mixture_shares) == pytest.approx(1)


@pytest.mark.parametrize("num_streams", [1, 2, 3])
def test_expanded_model_without_cross_stream_layers_is_the_dense_model(num_streams: int) -> None:
    torch.manual_seed(0)
    dense = DenseLlama(TINY)
    expanded = HiddenDecodingLlama(TINY, StreamSettings(num_streams, ()))
    expanded.load_state_dict(expand_tables(dense.state_dict(), num_streams))
    tokens, _ = draw_tokens()
    torch.testing.assert_close(expanded.compute_logits(tokens), dense.compute_logits(tokens))


def test_expansion_repeats_the_tables_in_turn() -> None:
    two = build_tiny_streams(2, ()).state_dict()
    four = expand_tables(two, 4)
    first, second = two["model.embed_tokens.weight"], two[TABLE.format(0)]
    assert not torch.equal(first, second)
    for name, expected in ((0, second), (1, first), (2, second)):
        assert torch.equal(four[TABLE.format(name)], expected)
    build_tiny_streams(4, ()).load_state_dict(four)
    assert TABLE.format(1) not in two


def attend_rows(attention: nn.Module, x: Tensor, rope: Rope, mask: Tensor) -> Tensor:
    """Attention over rows [1, R, C] with one position a row and a mask [R, R], spelled out."""
    heads = [getattr(attention, f"{n}_proj")(x).view(1, x.shape[1], -1, 32) for n in "qkv"]
    queries, keys, values = (head.transpose(1, 2) for head in heads)
    scores = apply_rope(queries, rope) @ apply_rope(keys, rope).transpose(2, 3) / 32**0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    output: Tensor = attention.get_submodule("o_proj")(
        (weights @ values).transpose(1, 2).flatten(2)
    )
    return output


def compute_row_logits(model: DenseLlama, tokens: Tensor, streams: StreamSettings) -> Tensor:
    """Logits [1, T, V] from rows i * n + s, explicit masks and explicit positions."""
    n, backbone = streams.num_streams, model.model
    tables = [
        backbone.embed_tokens,
        *backbone.get_submodule("scale_seq_embed_tokens_list").children(),
    ]
    x = torch.stack([tables[s](tokens[0, i]) for i in range(tokens.shape[1]) for s in range(n)])[
        None
    ]
    rows = torch.arange(x.shape[1])
    causal = rows[None] <= rows[:, None]
    cos, sin = build_rope(len(rows), TINY)
    for index, layer in enumerate(backbone.layers):
        crosses = index in streams.cross_stream_layers
        mask = causal if crosses else causal & (rows[None] % n == rows[:, None] % n)
        positions = rows if crosses else rows // n
        x = x + attend_rows(
            layer.self_attn, layer.input_layernorm(x), (cos[positions], sin[positions]), mask
        )
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(backbone.norm(x)[:, n - 1 :: n])


@pytest.mark.parametrize("cross_stream_layers", [(), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("num_streams", [2, 3])
def test_streams_follow_the_masks(num_streams: int, cross_stream_layers: tuple[int, ...]) -> None:
    streams = StreamSettings(num_streams, cross_stream_layers)
    model = build_tiny_streams(num_streams, cross_stream_layers)
    tokens = draw_tokens()[0][:1]
    expected = compute_row_logits(model, tokens, streams)
    torch.testing.assert_close(model.compute_logits(tokens), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changed", [1, 4, 6])
def test_cross_stream_layers_never_see_the_future(changed: int) -> None:
    model = build_tiny_streams(2, (1, 3))
    tokens, _ = draw_tokens()
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 32
    before, after = model.compute_logits(tokens), model.compute_logits(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], atol=1e-6, rtol=1e-6)
    for later in range(changed, tokens.shape[1]):
        assert (after[:, later] - before[:, later]).abs().max() > 1e-4


def test_first_stream_counts_only_through_cross_stream_layers() -> None:
    tokens, _ = draw_tokens()
    for cross_stream_layers, counts in (((), False), ((3,), True)):
        model = build_tiny_streams(2, cross_stream_layers)
        before = model.compute_logits(tokens)
        with torch.no_grad():
            model.model.embed_tokens.weight += 1
        assert torch.equal(model.compute_logits(tokens), before) != counts


def count_mask(scores: Tensor, bank_size: int, top_k: int) -> Tensor:
    """Keeps a channel [I] that fewer than `top_k` of its bank beat: larger, or equal and lower."""
    keep = []
    for bank in scores.split(bank_size):
        values = [-math.inf if math.isnan(v) else v for v in bank.tolist()]
        for i, value in enumerate(values):
            lower, higher = values[:i], values[i + 1 :]
            beaten = sum(v >= value for v in lower) + sum(v > value for v in higher)
            keep.append(beaten < top_k)
    return torch.tensor(keep, dtype=torch.float32)


def mask_scores(scores: Tensor, bank_size: int, top_k: int) -> Tensor:
    return mask_ranked(rank_banks(scores, bank_size)[1], top_k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_bank_keeps_exactly_k_and_ties_go_to_the_lowest_channel(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 3, (5, 256), generator=generator).to(dtype)
    scores[0, ::2] = -0.0  # equal to 0.0
    scores[1] = 0
    scores[2, 3::5] = torch.nan
    scores[3, 60:68] = torch.inf
    scores[4, :60] = torch.nan  # 4 finite channels: NaN fills up from the lowest
    mask = mask_scores(scores, 64, 16)
    assert torch.equal(mask.view(5, 4, 64).sum(dim=-1), torch.full((5, 4), 16.0))
    assert torch.equal(mask, torch.stack([count_mask(row, 64, 16) for row in scores]))
    assert torch.equal(mask[1].view(4, 64)[:, :16], torch.ones(4, 16))


def test_surrogate_is_the_mask_forward_and_a_sigmoid_backward() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0, -1.0, -4.0, 5.0], requires_grad=True)
    mask = mask_straight_through(logits, 4, 2, width=0.5)
    assert mask.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    weights = torch.arange(1.0, 9.0)
    (mask * weights).sum().backward()  # type: ignore[no-untyped-call]
    thresholds = torch.tensor([1.5] * 4 + [-1.0] * 4)
    soft = ((logits.detach() - thresholds) / 0.5).sigmoid()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, weights * soft * (1 - soft) / 0.5)


def build_tiny_banks(banks: BankSettings, stages: StageSettings | None = None) -> BankTopKLlama:
    """Random weights; predictors are random too, so nothing is near a good start."""
    torch.manual_seed(0)
    return BankTopKLlama(TINY, banks, stages)


def test_feed_forward_masks_what_the_predictor_ranks_low() -> None:
    layer = build_tiny_banks(TINY_BANKS).feed_forwards()[0]
    weights = dict(layer.named_parameters())
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    u, v = (x @ weights[f"{name}_proj.weight"].T for name in ("gate", "up"))
    p = x @ weights["predictor.0.weight"].T @ weights["predictor.1.weight"].T
    mask = torch.stack([count_mask(row, 8, 2) for row in p])
    expected = (mask * p.sigmoid() * u * v) @ weights["down_proj.weight"].T
    torch.testing.assert_close(layer(x), expected)


def test_sparse_loss_reaches_every_channel_of_the_predictor() -> None:
    model = build_tiny_banks(TINY_BANKS, StageSettings(0.0, 0.0))
    model.compute_loss(*draw_tokens(), 0.0).backward()  # type: ignore[no-untyped-call]
    for layer in model.feed_forwards():
        gradient = layer.get_parameter("predictor.1.weight").grad
        assert gradient is not None
        assert gradient.abs().sum(dim=-1).min() > 0


def test_stages_follow_the_progress() -> None:
    model, pair = build_tiny_banks(TINY_BANKS, StageSettings(0.2, 0.5)), draw_tokens()
    model.compute_loss(*pair, 0.1).backward()  # type: ignore[no-untyped-call]
    moved = {name for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {PREDICTOR.format(layer, i) for layer in range(4) for i in range(2)}
    losses = {}
    for stage in Stage:
        model.set_stage(stage)
        losses[stage] = -model.target_logprobs(*pair).mean()
    assert len({loss.item() for loss in losses.values()}) == 3
    torch.testing.assert_close(model.compute_loss(*pair, 0.2), losses[Stage.GATED])
    torch.testing.assert_close(model.compute_loss(*pair, 0.5), losses[Stage.SPARSE])
    torch.testing.assert_close(-model.target_logprobs(*pair).mean(), losses[Stage.SPARSE])


def test_full_rank_predictors_start_as_the_native_gate() -> None:
    torch.manual_seed(0)
    dense, (tokens, _) = DenseLlama(TINY), draw_tokens()
    model = build_tiny_banks(BankSettings(8, 8, predictor_rank=16))
    model.load_state_dict(add_predictors(dense.state_dict(), rank=16))
    torch.testing.assert_close(model.compute_logits(tokens), dense.compute_logits(tokens))
    low = build_tiny_banks(BankSettings(8, 8, predictor_rank=3))
    low.load_state_dict(add_predictors(dense.state_dict(), rank=3))
    assert (low.compute_logits(tokens) - dense.compute_logits(tokens)).abs().max() > 1e-4
    for layer, x in zip(model.feed_forwards(), model.record_inputs(tokens), strict=True):
        gate = layer.gate_proj(x).sigmoid()
        entropy = torch.special.entr(gate) + torch.special.entr(1 - gate)
        torch.testing.assert_close(layer.imitation_loss(x), entropy.mean())


def test_post_hoc_keeps_the_largest_activations() -> None:
    torch.manual_seed(0)
    dense, (tokens, _) = DenseLlama(TINY), draw_tokens()
    whole = sparsify_post_hoc(dense, BankSettings(8, 8))
    torch.testing.assert_close(whole.compute_logits(tokens), dense.compute_logits(tokens))
    layer = dense.model.layers[0].get_submodule("mlp")
    cut = sparsify_post_hoc(dense, TINY_BANKS).model.layers[0].get_submodule("mlp")
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    weights = dict(layer.named_parameters())
    u, v = (x @ weights[f"{name}_proj.weight"].T for name in ("gate", "up"))
    hidden = u * u.sigmoid() * v
    mask = torch.stack([count_mask(row, 8, 2) for row in hidden.abs()])
    torch.testing.assert_close(cut(x), (mask * hidden) @ weights["down_proj.weight"].T)


def test_weights_of_another_vocabulary_are_refused() -> None:
    folder = COMMITTED / "topics-dense"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    check_tokenizer(folder, tokenizer)
    tokenizer.add_tokens(["another"])
    with pytest.raises(ValueError, match="another tokenizer"):
        check_tokenizer(folder, tokenizer)


def test_own_folder_comes_before_the_committed_one(tmp_path: Path) -> None:
    assert find_checkpoint("topics-dense", (tmp_path, COMMITTED)).parent == COMMITTED
    (tmp_path / "topics-dense").mkdir()
    (tmp_path / "topics-dense" / "model.safetensors").touch()
    assert find_checkpoint("topics-dense", (tmp_path, COMMITTED)).parent == tmp_path
    with pytest.raises(FileNotFoundError, match="no topics-none in"):
        find_checkpoint("topics-none", (tmp_path, COMMITTED))


def load_committed(name: str) -> tuple[DenseLlama | NviumLlama, Tensor]:
    """The model and the held-out ids."""
    folder, text = COMMITTED / name, (COMMITTED / "heldout.txt").read_text(encoding="utf-8")
    model = build_named(name)
    if name == "topics-nextlat":
        load_fabric(model, folder, num_layers=8)
    else:
        load_weights(model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return model, torch.tensor(encode_text(tokenizer, text))


@pytest.mark.parametrize(
    ("name", "perplexity"),
    [
        ("topics-dense", 34.284),
        ("topics-nvium", 35.078),
        ("topics-hidden-decoding", 32.383),
        ("topics-bank-topk", 33.425),
        ("topics-hilp", 37.488),
        ("topics-nextlat", 31.276),
    ],
)
def test_committed_checkpoints_score_as_stated(name: str, perplexity: float) -> None:
    model, ids = load_committed(name)
    score = score_text(model, ids, num_bytes=30723)
    assert score.perplexity == pytest.approx(perplexity, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "along_greedy"), [("topics-hilp", 3.150), ("topics-nextlat", 2.465)]
)
def test_committed_checkpoints_draft_as_stated(
    name: str, along_greedy: float, tmp_path: Path
) -> None:
    """By the runtime, behind the README's prompts, and with its way of counting."""
    _, ids = load_committed(name)
    export_checkpoint(COMMITTED / name, tmp_path / "bundle", drafter=True, self_test=False)
    steps: list[float] = []
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(tmp_path / "bundle", draft=MAX_DRAFT) as llm:
        for prompt in cut_prompts(ids, PROMPT_LENGTH, 256).tolist():
            llm.generate([prompt], params)
            statistics = llm.stats.draft
            assert statistics is not None
            steps.append(statistics.accepted_per_step)
    assert sum(steps) / len(steps) == pytest.approx(along_greedy, rel=0.03)


@pytest.mark.parametrize("name", ["topics-hilp", "topics-nextlat"])
def test_committed_checkpoints_stay_small(name: str) -> None:
    files = [
        path for path in (COMMITTED / name).iterdir() if path.suffix in (".safetensors", ".pt")
    ]
    assert len(files) == 1
    assert files[0].stat().st_size < 3_000_000


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each recipe; their scores, of which the committed ones have tests, are of a
    tenth of the held-out text."""
    out = tmp_path_factory.mktemp("checkpoints")

    def score_briefly(model: LanguageModel, ids: Tensor, num_bytes: int) -> TextScore:
        return score_text(model, ids[:1060], num_bytes)

    with mock.patch("samples.train.__main__.score_text", score_briefly):
        run_shortly(["--steps", "5", "--out", str(out), "--threads", "1"])
    return out


def run_shortly(arguments: list[str]) -> None:
    """`main` with a window a step, models that write 16 tokens, and drafts counted over the first
    few hundred held-out tokens only."""

    def report_briefly(model: LatentLlama, heldout: Tensor) -> DraftReport:
        return report_drafts(model, heldout[:600])

    with mock.patch.multiple(
        "samples.train.__main__",
        LoopSettings=partial(LoopSettings, tokens_per_step=256),
        REFINE=replace(REFINE, count=16, rows=4),
        report_drafts=report_briefly,
    ):
        main(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_smoke_run_saves_public_tensors(smoke: Path, name: str) -> None:
    model = build_named(name)
    tensors = load_file(smoke / name / "model.safetensors")
    expected = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in tensors.items()} == expected
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors.values())
    exits = [key for key in tensors if key.startswith("early_norms.")]
    assert len(exits) == (3 if name == "topics-nvium" else 0)
    assert "model.layers.7.self_attn.q_proj.weight" in tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_smoke_run_saves_a_lossless_tokenizer(smoke: Path, name: str) -> None:
    tokenizer = Tokenizer.from_file(str(smoke / name / "tokenizer.json"))
    config = json.loads((smoke / name / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    for text in ((smoke / "heldout.txt").read_text(), "\t naïve  日本\r\n\n🙂 x"):
        ids = tokenizer.encode(text).ids
        assert ids[0] == config["bos_token_id"]
        assert config["eos_token_id"] not in ids
        assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_smoke_run_saves_nvium_settings(smoke: Path) -> None:
    text = (smoke / "topics-nvium" / ".hydra" / "config.yaml").read_text()
    settings = yaml.safe_load(text)
    assert settings["early_layer_idx"] == [2, 4, 6]
    assert settings["loss"]["alphas_main"]["router_compute_loss"] == NviumSettings().compute_weight
    assert "&" not in text  # no YAML anchors: readers may be simple


@pytest.mark.slow
def test_smoke_run_saves_stream_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-hidden-decoding" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    own = {
        "architectures": ["LlamaScaleSeqForCausalLM"],
        "model_type": "llama_scale_seq",
        "scale_seq_attn_per_suffix_layerwise": [True, True, True, False] * 2,
        "scale_seq_times": 1,
    }
    assert config == dense | own
    assert list(config) == sorted(config)


@pytest.mark.slow
def test_smoke_run_saves_bank_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-bank-topk" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    banks = {
        "bank_size": 64,
        "dense_fallback_layers": [],
        "gate_mode": "sigmoid",
        "predictor_activation": None,
        "predictor_rank": 24,
        "top_k": 16,
    }
    own = {"architectures": ["LlamaBankTopKForCausalLM"], "bank_topk": banks}
    assert config == dense | own
    tensors = load_file(smoke / "topics-bank-topk" / "model.safetensors")
    added = tensors.keys() - load_file(smoke / "topics-dense" / "model.safetensors").keys()
    assert added == {PREDICTOR.format(layer, i) for layer in range(8) for i in range(2)}
    assert tensors[PREDICTOR.format(7, 0)].shape == (24, 96)
    assert tensors[PREDICTOR.format(7, 1)].shape == (256, 24)


@pytest.mark.slow
def test_smoke_run_saves_hilp_settings(smoke: Path) -> None:
    config = json.loads((smoke / "topics-hilp" / "config.json").read_text())
    dense = json.loads((smoke / "topics-dense" / "config.json").read_text())
    hilp = {"drafter": "glu_cross", "residual": True, "window": 4}
    assert config == dense | {"architectures": ["LlamaHiLPForCausalLM"], "hilp": hilp}
    tensors = load_file(smoke / "topics-hilp" / "model.safetensors")
    added = tensors.keys() - load_file(smoke / "topics-dense" / "model.safetensors").keys()
    groups = {
        "lower_dynamics": ("w_h", "w_e", "gate", "up", "down"),
        "swa": ("norm", "q_proj", "k_proj", "v_proj", "o_proj"),
        "upper_dynamics": ("gate", "up", "down"),
        "combined_head": ("w_h", "w_u", "out"),
    }
    assert added == {f"{group}.{n}.weight" for group, names in groups.items() for n in names}
    assert tensors["lower_dynamics.gate.weight"].shape == (4 * 96, 96)
    assert tensors["combined_head.out.weight"].shape == (1024, 96)


@pytest.mark.slow
def test_smoke_run_saves_nextlat_in_its_own_layout(smoke: Path) -> None:
    folder = smoke / "topics-nextlat"
    settings = yaml.safe_load((folder / "materialized_config.yaml").read_text())
    assert settings["n_embd"] == 96
    assert settings["mtp_horizon"] == 4
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.token_to_id("<|endoftext|>") == settings["eos_token_id"]
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert checkpoint["training_steps"] == 2
    tensors = checkpoint["model"]
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors.values())
    assert tensors["transformer.blocks.7.attn.c_attn.weight"].shape == (3 * 96, 96)
    assert tensors["transformer.blocks.7.mlp.up.gate_up.weight"].shape == (2 * 256, 96)
    assert len(tensors) == 3 + 8 * 6 + 4
    assert not (folder / "config.json").exists()


@pytest.mark.slow
def test_smoke_run_goes_on_from_its_own_dense_model(smoke: Path) -> None:
    dense = load_file(smoke / "topics-dense" / "model.safetensors")
    streams = load_file(smoke / "topics-hidden-decoding" / "model.safetensors")
    assert streams.keys() == dense.keys() | {TABLE.format(0)}
    first, second = streams["model.embed_tokens.weight"], streams[TABLE.format(0)]
    start = dense["model.embed_tokens.weight"]
    for table in (first, second):
        likeness = functional.cosine_similarity(table.float(), start.float(), dim=-1)
        assert likeness.min() > 0.9
    assert not torch.equal(first, second)
    banks = load_file(smoke / "topics-bank-topk" / "model.safetensors")
    gate = "model.layers.0.mlp.gate_proj.weight"
    likeness = functional.cosine_similarity(banks[gate].float(), dense[gate].float(), dim=-1)
    assert 0.9 < likeness.min() < 1
    assert not (smoke / "topics-dense-continued").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hidden-decoding", "bank-topk", "hilp", "nextlat"])
def test_single_recipe_goes_on_from_the_committed_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_shortly(["--steps", "2", "--out", str(tmp_path), "--threads", "1", "--only", name])
    printed = capsys.readouterr().out
    assert f"dense: read from {COMMITTED / 'topics-dense'}" in printed
    assert "\ndense                  34.284" in printed
    assert ("\ndense-4x               35.477" in printed) == (name == "bank-topk")
    paper = {"hilp": "       3.41      2.59\n", "nextlat": "       3.26      2.57\n"}
    assert all((row in printed) == (name == own) for own, row in paper.items())
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [f"topics-{name}"]
