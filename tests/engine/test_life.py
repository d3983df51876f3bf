"""From loading to stopping: the core's promises besides its tokens."""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Speech2TextConfig

from inference.config import EngineConfig, ModelConfig
from inference.cpu.prefault import AHEAD_TOKENS, Prefault
from inference.cpu.stack import FusedRunner
from inference.engine import engine
from inference.engine.engine import TorchCore
from inference.engine.step import Stepper
from inference.errors import ModelUnavailable
from inference.kernels.native import open_library
from inference.kv_cache.blocks import PAGE
from inference.types import CoreFailure, Frame
from tests.engine.cores import SECONDS, Heard, Session, best, config, request
from tests.engine.models import EOS, VOCABULARY, generate, make_model, prompts, save_model
from tests.resident import TELLS, resident

PROMPT = prompts(10)[0]


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "model"))


@pytest.fixture
def session(directory: Path) -> Iterator[Session]:
    session = Session(config(directory))
    yield session
    session.close()


def load(path: Path | str, **settings: str | bool) -> TorchCore:
    core = TorchCore(EngineConfig(model=ModelConfig(model_id=str(path), **settings)))  # type: ignore[arg-type]
    core.load(print)
    return core


def test_model_is_described_and_the_plan_comes_before_the_weights(session: Session) -> None:
    info = session.info
    assert (info.dtype, info.device_type, session.level) == (
        "torch.float32",
        "cpu",
        best("fused", "paged+merged"),
    )
    assert (info.max_total_tokens, info.max_input_tokens) == (256, 255)
    assert (info.eos_token_ids, info.vocabulary_size) == ((EOS,), VOCABULARY)
    assert [line.split()[0] for line in session.progress][:3] == ["Plan:", "Loaded", "Level"]
    assert (
        f"{info.max_batch_total_tokens:,} tokens x 768 B" in session.progress[0]
    )  # 3 layers, 2 heads of 16 twice, float32


def test_plan_counts_one_head_where_all_share_it(tmp_path: Path) -> None:
    save_model("gpt_bigcode", tmp_path)
    session = Session(config(tmp_path))
    (plan,) = (line for line in session.progress if line.startswith("Plan"))
    assert f"x {4 * 3 * 1 * 16 * 2:,} B" in plan  # float32, layers, heads, width, key and value
    session.close()


def test_idle_core_uses_no_processor_time(session: Session) -> None:
    session.run([request("a", PROMPT)])
    assert session.idle_seconds() < 0.2  # a thread that spins takes its share of two


@pytest.mark.skipif(not TELLS, reason="only Linux tells")
@pytest.mark.skipif(open_library() is None, reason="torch's arrays may lie where memory was used before")
@pytest.mark.parametrize("rest", [0.0, 600.0])
def test_whoever_asks_on_and_on_waits_for_no_work_that_is_done_while_idle(
    rest: float, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    monkeypatch.setattr(engine, "REST_SECONDS", rest)
    monkeypatch.setattr(Stepper, "work_while_idle", lambda _: begun.append(rest))
    session = Session(config(directory))
    for id in "abc":
        session.run([request(id, PROMPT)])
        time.sleep(0.05)
    session.close()
    assert bool(begun) == (not rest)


@pytest.mark.parametrize("prefault", [True, False])
def test_idle_core_finds_memory_for_its_cache_and_what_is_known_stays(
    directory: Path, *, prefault: bool
) -> None:
    session = Session(config(directory, max_batch_total_tokens=2 * AHEAD_TOKENS, prefault_cache=prefault))
    stepper = session.core._stepper
    assert isinstance(stepper, Stepper)
    assert isinstance(stepper._runner, FusedRunner)
    arrays = stepper._runner.arrays
    assert (sum(map(resident, arrays)) > 0) == prefault
    prompt = prompts(3 * PAGE)[0]
    heard = session.run([request("a", prompt)])
    ahead = sum(array.nbytes for array in arrays) // 2
    until = time.monotonic() + (SECONDS if prefault else 0.3)
    while (present := sum(map(resident, arrays))) < ahead and time.monotonic() < until:
        time.sleep(0.05)
    assert (present >= ahead) == prefault
    again = session.run([request("b", prompt)])
    assert again.outputs["b"][0].cached_tokens == 2 * PAGE
    assert again.tokens("b") == heard.tokens("a")
    session.close()


def test_requests_and_the_end_come_before_idle_work(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(_: Prefault, high_water: int) -> bool:
        time.sleep(0.001)
        return True  # there is always more of it

    monkeypatch.setattr(Prefault, "advance", advance)
    session = Session(config(directory))
    for name in ("a", "b"):
        assert len(session.run([request(name, PROMPT)]).tokens(name)) == 20
    session.close()  # which waits for the core's thread
    assert not session.core.alive


def test_stopping_fails_what_is_left_and_what_comes_after(directory: Path) -> None:
    session = Session(config(directory))

    def slow(frame: Frame) -> None:  # the text must not end before the engine is told to stop
        session.frames.put(frame)
        while not session.core._stopping:
            time.sleep(0.001)

    session.core.submit(request("long", PROMPT, tokens=240))
    session.core.start(slow)
    session.frames.get(timeout=SECONDS)
    session.core.stop()
    assert not session.core.alive
    session.core.submit(request("late", PROMPT))
    said = [output for frame in list(session.frames.queue) for output in frame.outputs]
    assert [output.id for output in said if isinstance(output, CoreFailure)] == ["long", "late"]


def test_request_that_can_not_be_queued_fails_alone(session: Session) -> None:
    heard = session.run([request("a", ("no", "tokens")), request("b", PROMPT)])  # type: ignore[arg-type]
    assert "could not be queued" in heard.failures["a"]
    assert len(heard.tokens("b")) == 20


def test_row_that_is_not_a_number_fails_alone(tmp_path: Path) -> None:
    model = save_model("gpt2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.wpe.weight"][100] = torch.nan  # whoever gets that far computes NaN
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    session = Session(config(tmp_path, max_batch_total_tokens=256))
    assert session.level == best("fused", "paged")
    short, other, long = prompts(9, 20, 110)
    for _ in range(3):  # the cache's pages are used again after the failure
        heard = session.run([request("a", short), request("bad", long), request("b", other)])
        assert "not a number" in heard.failures["bad"]
        assert heard.tokens("a") == generate(model, short, 20)
        assert heard.tokens("b") == generate(model, other, 20)
    session.close()


def test_failing_step_fails_its_requests_and_the_core_lives_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(session.core._stepper._runner, "run", lambda *_, **__: 1 / 0)  # type: ignore[union-attr]
        heard = session.run([request("a", PROMPT), request("b", PROMPT)])
    assert set(heard.failures) == {"a", "b"}
    assert "ZeroDivisionError" in heard.failures["a"]
    assert len(session.run([request("c", PROMPT)]).tokens("c")) == 20


def test_dying_loop_tells_every_request(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(config(directory))
    monkeypatch.setattr("inference.scheduling.scheduler.Scheduler.schedule", lambda _: 1 / 0)
    heard = session.run([request("a", PROMPT), request("b", PROMPT)])
    assert set(heard.failures) == {"a", "b"}
    session.close()
    assert not session.core.alive


@pytest.mark.parametrize("broken", [False, True])
def test_engine_ends_once_its_gpu_answers_no_more(directory: Path, broken: bool) -> None:
    session = Session(config(directory))
    session.run([request("before", PROMPT)])
    session.core._device = torch.device("cuda")

    def synchronize(device: torch.device) -> None:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", synchronize)
        patch.setattr(session.core._stepper._runner, "run", lambda *_, **__: 1 / 0)  # type: ignore[union-attr]
        assert "ZeroDivisionError" in session.run([request("a", PROMPT)]).failures["a"]
        if broken:
            session.core.join()
    heard = Heard()
    session.submit(request("b", PROMPT))
    while not heard.ended("b"):
        heard.add(session.frames.get(timeout=SECONDS))
    assert session.core.alive is not broken
    assert ("b" in heard.failures) == broken  # whoever supervises it starts another
    session.close()


def test_merging_can_be_switched_off(directory: Path) -> None:
    session = Session(config(directory, merge_linears=False, native_kernels=False))
    assert session.level == "paged"
    assert session.run([request("a", PROMPT)]).tokens("a") == generate(make_model("llama"), PROMPT, 20)
    session.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_that_is_asked_for_is_used(directory: Path, dtype: str) -> None:
    core = TorchCore(EngineConfig(model=ModelConfig(model_id=str(directory), dtype=dtype)))
    info = core.load(print)
    assert info.dtype == f"torch.{dtype}"
    assert info.level.partition(":")[0] == best("fused", "paged+merged")
    frames: queue.Queue[Frame] = queue.Queue()
    core.start(frames.put)
    core.submit(request("a", PROMPT, tokens=1))
    assert len(frames.get(timeout=SECONDS).outputs) == 1
    core.stop()


def test_model_of_stored_half_precision_is_computed_in_float32_on_a_cpu(tmp_path: Path) -> None:
    model = make_model("llama").bfloat16()
    model.save_pretrained(tmp_path)
    session = Session(config(tmp_path))
    assert session.info.dtype == best("torch.bfloat16", "torch.float32")  # of the weights
    assert session.run([request("a", PROMPT)]).tokens("a") == generate(model.float(), PROMPT, 20)
    session.close()


def test_layers_without_a_paged_form_are_served_sequentially(tmp_path: Path) -> None:
    save_model("inkling_text", tmp_path)
    session = Session(config(tmp_path))
    assert session.level == "sequential"
    level, plan = session.progress[-2:]
    assert "hybrid_sliding" in level
    assert "prefix cache off" in plan
    assert "prompts whole, one at a time" in plan
    session.close()


def test_unknown_architecture_is_explained(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "perceptron"}))
    with pytest.raises(ModelUnavailable, match=r"perceptron.*another version of transformers"):
        load(copy)


def test_model_that_does_not_generate_text_is_explained(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelUnavailable, match="no text generation model"):
        load(copy)


def test_model_with_an_encoder_of_other_things_than_text_is_explained(copy: Path) -> None:
    Speech2TextConfig().save_pretrained(copy)
    with pytest.raises(ModelUnavailable, match="has an encoder and a decoder, but is none of transformers'"):
        load(copy)


def test_model_with_code_of_its_own_is_explained(copy: Path) -> None:
    settings = {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (copy / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelUnavailable, match="--trust-remote-code"):
        load(copy)


def test_damaged_weights_are_explained(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors.*is damaged"):
        load(copy)


def test_device_that_is_not_there_is_explained(directory: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(ModelUnavailable, match="--device cpu"):
        load(directory, device="cuda")


def test_prompts_whose_reader_has_enough_wait_without_work_while_others_go_on(session: Session) -> None:
    full, heard = {"told", "told too"}, Heard()
    session.core.pace(full.__contains__)
    for name in ("told", "told too"):
        session.submit(request(name, PROMPT, tokens=2, prompt_logprobs=True))
    session.submit(request("plain", PROMPT, tokens=2))
    while not heard.ended("plain"):
        session.listen(heard)
    assert heard.outputs.keys() == {"plain"}
    assert session.idle_seconds() < 0.5
    full.clear()
    session.core.ask_again()
    while not (heard.ended("told") and heard.ended("told too")):
        session.listen(heard)
    assert heard.tokens("told") == heard.tokens("plain")
    assert heard.outputs["told"][0].prompt_logprobs is not None


def test_layers_that_keep_a_state_say_that_fusing_is_switched_off(tmp_path: Path) -> None:
    save_model("mamba2", tmp_path)
    session = Session(config(tmp_path, fuse_layers=False))
    if session.level == "native":
        assert (
            "fusing is switched off, so that layers that keep a state are their own code's"
            in session.info.level
        )
    session.close()


def test_nobody_is_told_to_install_what_computes_on_gpus_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    save_model("granitemoehybrid", tmp_path)
    session = Session(config(tmp_path))
    session.close()
    assert "falling back" not in caplog.text + "".join(capfd.readouterr())
