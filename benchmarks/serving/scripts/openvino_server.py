"""A thin HTTP server over OpenVINO GenAI's continuous batching, which comes without one.

    python openvino_server.py MODEL.gguf --tokenizer tokenizer.json --port PORT  (in its environment)

One thread steps the pipeline; whatever a step has given goes to the event loop in one call. It takes the
members that the load client sends to /v1/completions, and no others.
"""

import argparse
import asyncio
import json
import queue
import threading
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from aiohttp import web
from tokenizers import Tokenizer

YIELD_SECONDS = 0.0003  # after a step, which keeps the interpreter: the event loop writes meanwhile


class Engine(threading.Thread):
    """The pipeline and its requests."""

    def __init__(self, pipeline, loop):
        super().__init__(daemon=True)
        self.waiting = queue.Queue()
        self._pipeline, self._loop = pipeline, loop
        self._running = {}  # id -> (handle, queue of the response)
        self._last_id = 0

    def run(self):
        while True:
            self._take()
            self._pipeline.step()
            given = list(self._given())
            if given:
                self._loop.call_soon_threadsafe(publish, given)
            time.sleep(YIELD_SECONDS)

    def _take(self):
        while not self._running or not self.waiting.empty():
            ids, config, events = self.waiting.get()
            self._last_id += 1
            self._running[self._last_id] = (self._pipeline.add_request(self._last_id, ids, config), events)

    def _given(self):
        for id, (handle, events) in list(self._running.items()):
            if handle.can_read():
                for output in handle.read().values():
                    yield events, list(output.generated_ids)
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                yield events, None
                del self._running[id]


def publish(given):
    for events, ids in given:
        events.put_nowait(ids)


def make_completions(engine, tokenizer):
    async def completions(request):
        body = await request.json()
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = (
            body["max_tokens"],
            body["ignore_eos"],
            False,
        )
        ids, events, count = tokenizer.encode(body["prompt"]).ids, asyncio.Queue(), 0
        engine.waiting.put((ov.Tensor(np.array([ids], dtype=np.int64)), config, events))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while (generated := await events.get()) is not None:
            count += len(generated)
            choice = {"index": 0, "text": tokenizer.decode(generated), "finish_reason": None}
            await response.write(frame({"object": "text_completion", "choices": [choice]}))
        usage = {"prompt_tokens": len(ids), "completion_tokens": count, "total_tokens": len(ids) + count}
        await response.write(frame({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    return completions


def frame(event):
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def health(request):
    return web.Response(text="ok")


async def serve(arguments):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = arguments.cache_gb, 64
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = 256
    pipeline = genai.ContinuousBatchingPipeline(arguments.model, scheduler_config=scheduler, device="CPU")
    engine = Engine(pipeline, asyncio.get_running_loop())
    engine.start()
    app = web.Application()
    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    app.router.add_post("/v1/completions", make_completions(engine, tokenizer))
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
    await asyncio.Event().wait()


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--tokenizer", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--cache-gb", type=int, default=2)
asyncio.run(serve(parser.parse_args()))
