#include "weft/env/reward_adapter.h"

namespace weft {

std::string_view reward_adapter_source() {
  return R"py(
"""Runs one reward function for weft: JSON lines in and out (docs/rewards.md). Arguments: FILE FUNCTION."""
import importlib.util
import inspect
import json
import math
import os
import queue
import sys
import threading
import traceback


class RowError(Exception):
    def __init__(self, text, row=None):
        super().__init__(text)
        self.row = row


def take_over_streams():
    """The protocol gets copies of 0 and 1; what user code prints goes to standard error, what it reads is empty."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "w", encoding="ascii", newline="\n")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return requests, replies


def load(path, name):
    directory = os.path.dirname(os.path.abspath(path))
    sys.path[0:1] = [directory]
    sys.argv = [path]
    module_name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if function is None or not callable(function) or inspect.isclass(function):
        known = sorted(
            key for key, value in vars(module).items()
            if callable(value) and not inspect.isclass(value) and not key.startswith("_")
            and getattr(value, "__module__", module_name) == module_name)
        raise RowError("it has no function '%s'; it has: %s" % (name, ", ".join(known) or "none"))
    return function


def number(value, row):
    """What goes on the wire for a figure: a float, or the name of one that JSON cannot hold."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        try:
            value = value.item()
        except (TypeError, ValueError):
            pass
    if not isinstance(value, (int, float)):
        raise RowError("it gave %.80r (%s), not a number" % (value, type(value).__name__), row)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf if value > 0 else -math.inf
    return value if math.isfinite(value) else repr(value)


def score_of(value, row):
    if value is None:
        return None
    if not isinstance(value, dict):
        return number(value, row)
    if "score" not in value:
        raise RowError("it gave a dict without 'score' (keys: %s)" % ", ".join(map(str, value)), row)
    result = {"score": None if value["score"] is None else number(value["score"], row)}
    for key, extra in value.items():
        if key != "score" and isinstance(extra, (int, float)):
            result[str(key)] = number(extra, row)
    return result


class Reward:
    def __init__(self, function, name):
        self.function = function
        parameters = inspect.signature(function).parameters
        kinds = inspect.Parameter
        self.takes_all = any(p.kind == kinds.VAR_KEYWORD for p in parameters.values())
        named = {k: p for k, p in parameters.items() if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
        self.accepted = set(named)
        self.required = [k for k, p in named.items() if p.default is kinds.empty]
        self.batch = "completions" in named
        if not self.batch and "solution_str" not in named:
            raise RowError("%s%s has neither a parameter 'completions' (f(prompts, completions, **columns)) nor "
                           "'solution_str' (compute_score(data_source, solution_str, ground_truth, extra_info))"
                           % (name, inspect.signature(function)))

    def call(self, arguments, row=None):
        missing = [k for k in self.required if k not in arguments]
        if missing:
            raise RowError("it needs '%s', which is no field of the row; there are: %s"
                           % (missing[0], ", ".join(sorted(arguments))), row)
        if not self.takes_all:
            arguments = {k: v for k, v in arguments.items() if k in self.accepted}
        result = self.function(**arguments)
        if inspect.iscoroutine(result):
            import asyncio  # slow to import, and most functions do not need it
            result = asyncio.run(result)
        return result

    def score_batch(self, rows):
        columns = {}
        for key in sorted({key for row in rows for key in row["fields"]}):
            columns[key] = [row["fields"].get(key) for row in rows]
        for key in ("prompt_ids", "ground_truth", "data_source"):
            columns.setdefault(key, [row[key] for row in rows])
        columns.pop("prompt", None)
        columns.pop("completion", None)
        chats = [row["messages"] is not None for row in rows]
        columns["prompts"] = [row["messages"] if chat else row["prompt"] for row, chat in zip(rows, chats)]
        columns["completions"] = [[{"role": "assistant", "content": row["completion"]}] if chat else row["completion"]
                                  for row, chat in zip(rows, chats)]
        columns["completion_ids"] = [row["completion_ids"] for row in rows]
        values = self.call(columns)
        if hasattr(values, "tolist"):
            values = values.tolist()
        if not isinstance(values, (list, tuple)):
            raise RowError("it gave %.80r (%s), not a list with one value per completion" % (values, type(values).__name__))
        if len(values) != len(rows):
            raise RowError("it gave %d values for %d completions" % (len(values), len(rows)))
        return [score_of(value, row) for row, value in enumerate(values)]

    def score_row(self, row, index):
        extra_info = row["fields"].get("extra_info")
        arguments = dict(data_source=row["data_source"], solution_str=row["completion"], ground_truth=row["ground_truth"],
                         extra_info=extra_info if isinstance(extra_info, dict) else {})
        return score_of(self.call(arguments, index), index)

    def score(self, rows):
        if self.batch:
            return self.score_batch(rows)
        return [self.score_row(row, index) for index, row in enumerate(rows)]


def failure(error):
    """Text of an exception of user code, without the frames of this program."""
    if isinstance(error, RowError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ("<string>", "<frozen importlib._bootstrap>",
                                                                      "<frozen importlib._bootstrap_external>"):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip("\n")


def read_requests(requests, lines):
    for line in requests:
        lines.put(line)
    lines.put(None)
    # weft is gone, or done: a function that still runs has a moment to end.
    threading.Event().wait(5)
    os._exit(0)


def main():
    requests, replies = take_over_streams()
    path, name = sys.argv[1:3]

    def reply(message):
        replies.write(json.dumps(message, allow_nan=False) + "\n")
        replies.flush()

    try:
        reward = Reward(load(path, name), name)
    except BaseException as error:
        reply({"ready": False, "error": failure(error)})
        return
    reply({"ready": True, "batch": reward.batch})
    lines = queue.Queue()
    threading.Thread(target=read_requests, args=(requests, lines), daemon=True).start()
    while True:
        line = lines.get()
        if line is None:
            return
        message = json.loads(line)
        try:
            reply({"id": message["id"], "scores": reward.score(message["rows"])})
        except BaseException as error:
            reply({"id": message["id"], "error": failure(error), "row": getattr(error, "row", None)})


main()
)py";
}

}  // namespace weft
