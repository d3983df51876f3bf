"""Every example of the contract on the real engine with the model that ships with Parley."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from inference.environment import prepare_environment

prepare_environment()

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


from inference.engine.engine import TorchCore  # noqa: E402
from inference.frontend.client import EngineClient  # noqa: E402
from inference.text.pipeline import load_text  # noqa: E402
from tests.adapter_files import write_adapter  # noqa: E402
from tests.contract.executing import refusing, send  # noqa: E402
from tests.contract.test_examples import EXCHANGES, unlike  # noqa: E402
from tests.support import live_server, make_service  # noqa: E402

# Whether it calls, once or twice, or ends in so few tokens, is the model's own choice there; the fake engine
# is told to
DECIDED_BY_THE_MODEL = {
    *(f"chat_completions {name}" for name in ("tools", "two calls", "two calls streamed")),
    *(f"create_response {name}" for name in ("plain", "tools", "two calls streamed")),
    *(f"create_message {name}" for name in ("tools", "two calls streamed")),
}


SIZE = 256  # of the model's layers
WORDS = ('"object":"chat.completion', '"object":"response"', '"type":"message"')  # that answers have


@pytest.mark.slow
def test_every_example_is_answered_as_it_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Most examples draw their tokens: of 600 first ones one ends the text, which an answer then shows
    monkeypatch.setattr("handlers.routes.sequences.random", Random(0))
    write_adapter(tmp_path / "sql-v2", size=SIZE)
    service = make_service(lora_directory=str(tmp_path))
    config = replace(service.settings.engine_config(), threads=1, max_batch_total_tokens=8192)
    engine = EngineClient(TorchCore(config), config, lambda: load_text(config.model))
    wrong: dict[str, list[str]] = {}
    with live_server(make_service(service.settings, engine)) as live, live.client() as client:
        for exchange in EXCHANGES:
            response = send(client, exchange.operation, exchange.body)
            name = f"{exchange.operation.id} {exchange.name}"
            refused = refusing(exchange.operation)
            assert response.status_code == (refused if exchange.needs else int(exchange.status)), name
            if name in DECIDED_BY_THE_MODEL:
                assert any(word in response.text for word in WORDS)
            elif not exchange.needs:
                wrong[name] = unlike(exchange, response)
    assert {name: found for name, found in wrong.items() if found} == {}
