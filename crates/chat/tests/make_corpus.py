"""Writes goldens/corpus.json: conversations of all kinds, and for each template hashes of what Jinja2 makes of them.

usage: make_corpus.py FOLDER_OF_OFFICIAL_TEMPLATES

The conversations are made from a seed. They are rendered by the official templates (chat_template.*.jinja) and by
those in templates/ beside this file and of the built-in model, as transformers does it; where Jinja2 fails the hash is dashes. Of every branch
of the official templates both ways are taken, but for those that are listed below.
Needs transformers, jinja2.
"""

import json
import random
import re
import sys
from pathlib import Path

import jinja2
from jinja2 import nodes
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

HERE = Path(__file__).parent
OFFICIAL = Path(sys.argv[1])
SEED = 26
RANDOM = random.Random(SEED)
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


def chance(share): return RANDOM.random() < share
def pick(items): return RANDOM.choice(items)


# ---- texts and values

WORDS = (
    "the a temperature weather in Zürich is Ελλάς größer 今天 天気 안녕 привет नमस्ते 🦀 👩‍👧 naïve x=1 {} {{x}} {%if%} [1,2] \"q\" 'q' a<b b>c "
    "<div> </p> \\n \\ % %s # null None true <0xEA> ▁ İ ß ﬁ Σ ς"
).split(" ")
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\x1c", "\x1f", "\u200b", "\ufeff"]
CONTROL = ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|image|>", "<|tool_call>", "<|tool_response>", "<tool_response|>", "<|\"|>", "<|think|>", "<|turn>system\n"]
THOUGHTS = ["<|channel>thought\nHm.\n<channel|>", "<|channel>", "<channel|>", "<|channel>a<channel|><channel|>", "<|channel>x<|channel>y<channel|>"]


def text(most=6, thoughts=0.0):
    pieces = []
    if chance(0.3):
        pieces.append(pick(SPACES))
    for _ in range(RANDOM.randint(0, most)):
        kind = RANDOM.random()
        pieces.append(pick(SPACES) if kind < 0.12 else pick(CONTROL) if kind < 0.2 else pick(WORDS))
        if chance(thoughts):
            pieces.append(pick(THOUGHTS))
        if chance(0.6):
            pieces.append(" ")
    if chance(0.3):
        pieces.append(pick(SPACES))
    return "".join(pieces)


KEYS = ["a", "A", "b", "B", "aa", "Zone", "zone", "é", "É", "ß", "SS", "İ", "Σ", "ς", "日", "_", "0", "10", "9", "items", "get", "keys", "type", "x y", "k:v", "", "<|\"|>", "a<b"]
NUMBERS = "0 -0 1 -1 42 9007199254740993 12345678901234567890 -99999999999999999999 123456789012345678901234567890123456789012345 " \
    "0.0 -0.0 1.0 1.5 -2.50 0.1 1e5 1E5 1e-5 0.0001 1e15 1e16 1.7976931348623157e308 1e400 -1e400 5e-324 3.141592653589793 100.0e0".split()


def number(): return f"@@{pick(NUMBERS)}@@"


def value(depth=3):
    kind = RANDOM.random()
    if depth and kind < 0.2:
        return {pick(KEYS): value(depth - 1) for _ in range(RANDOM.randint(0, 4))}
    if depth and kind < 0.38:
        return [value(depth - 1) for _ in range(RANDOM.randint(0, 4))]
    return pick([None, True, False, number(), number(), text(3), text(2), ""])


def nested(depth):
    made = 1
    for level in range(depth):
        made = {"k": made} if level % 2 else [made]
    return made


def arguments():
    made = {pick(KEYS): value() for _ in range(RANDOM.randint(0, 5))}
    kind = RANDOM.random()
    if kind < 0.25:
        return json.dumps(made, ensure_ascii=chance(0.5))
    if kind < 0.32:
        return pick(["", " ", "null", "{}", None])
    return made


# ---- tools

def function(name, **more): return {"type": "function", "function": {"name": name, **more}}


def with_property(schema, required=None):
    parameters = {"type": "object", "properties": {"p": schema}}
    if required is not None:
        parameters["required"] = required
    return function("f", description="Does f.", parameters=parameters)


ODD = [
    function("bare"),
    function("null_description", description=None, parameters={"type": "object", "properties": {}}),
    function("empty_description", description="", parameters={}),
    function("null_parameters", description="d", parameters=None),
    function("number_description", description=7),
    function("text_parameters", description="d", parameters="none"),
    function("true_parameters", description="d", parameters=True),
    function("list_parameters", description="d", parameters=[1]),
    function("no_type", description="d", parameters={"properties": {"a": {"type": "string"}}}),
    function("null_type", description="d", parameters={"type": None, "properties": {"a": {"type": None}}}),
    function("type_list", description="d", parameters={"type": ["object", "null"], "properties": {}}),
    function("no_properties", description="d", parameters={"type": "object"}),
    function("null_properties", description="d", parameters={"type": "object", "properties": None}),
    function("list_properties", description="d", parameters={"type": "object", "properties": ["a"]}),
    function("text_properties", description="d", parameters={"type": "object", "properties": "a"}),
    function("null_required", description="d", parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": None}),
    function("true_required", description="d", parameters={"type": "object", "properties": {}, "required": True}),
    function("text_required", description="d", parameters={"type": "object", "properties": {}, "required": "ab"}),
    function("map_required", description="d", parameters={"type": "object", "properties": {}, "required": {"a": 1, "b": 2}}),
    function("odd_required", description="d", parameters={"type": "object", "properties": {}, "required": [1, None, True, 1.5, ["a"]]}),
    function("response", description="d", response={"type": "object", "description": "r"}),
    function("response_text", description="d", response={"type": "string"}),
    function("response_null", description="d", response=None),
    function("response_bare", description="d", response={}),
    function("strict", description="d", strict=True, parameters={"$schema": "x", "type": "object", "additionalProperties": False, "$defs": {"a": {"type": None}}, "properties": {"a": {"$ref": "#/$defs/a"}}}),
    function("two\nlines <|\"|> <turn|>", description="  d\n <|tool>  ", parameters={"type": "OBJECT", "properties": {"<|turn>": {"type": "string", "description": "<eos>"}}}),
    {"name": "wrapped", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"type": "function", "name": "flat", "parameters": {"type": "object", "properties": {"Z": {"type": "integer"}, "a": {}, "É": {}}}},
    with_property({}), with_property(None), with_property(True), with_property(False), with_property("text"), with_property(7), with_property(["a"]),
    with_property({"type": "string"}, []), with_property({"type": "string", "description": "x"}, ["p"]),
    with_property({"type": ["string", "null"], "description": "x"}), with_property({"type": []}), with_property({"type": {"a": 1}}), with_property({"type": 7}), with_property({"type": True}),
    with_property({"type": "String", "enum": ["a", "b"]}), with_property({"type": "string", "description": "x", "enum": ["a"]}), with_property({"type": "string", "enum": [1, 2.5, None, True, "x", ["y"], {"z": "1"}]}),
    with_property({"type": "string", "enum": []}), with_property({"type": "string", "enum": "ab"}), with_property({"type": "integer", "enum": [1]}), with_property({"type": "string", "enum": {"b": 1, "A": 2}}),
    with_property({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "P", "default": None}), with_property({"$ref": "#/$defs/X"}), with_property({"oneOf": [True, None]}),
    with_property({"type": "string", "nullable": True}), with_property({"type": "string", "nullable": True, "description": "x"}), with_property({"type": "string", "nullable": None}), with_property({"type": "integer", "nullable": "yes"}),
    with_property({"type": "array"}), with_property({"type": "array", "items": None}), with_property({"type": "array", "items": {}}), with_property({"type": "array", "items": True}), with_property({"type": "array", "items": [{"type": "string"}]}),
    with_property({"type": "array", "items": {"type": "string"}}), with_property({"type": "array", "description": "x", "items": {"type": ["string", "integer"]}}), with_property({"type": "array", "items": {"type": None}}),
    with_property({"type": "array", "items": {"type": {"a": 1}}}), with_property({"type": "array", "items": {"type": 7}}), with_property({"type": "array", "items": {"type": [1, None]}}),
    with_property({"type": "array", "nullable": True, "items": {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "description": "x"}, "b": {"type": "array", "items": {"type": "number", "enum": [1, 2]}}}, "default": {"B": 1, "a": None}}}),
    with_property({"type": "array", "items": {"required": "ab", "properties": None, "minItems": 1, "x": 1.5, "y": None, "const": None}}), with_property({"type": "array", "items": {"required": 5}}), with_property({"type": "array", "items": {"properties": ["a"]}}),
    with_property({"type": "array", "items": {"properties": {"a": {"type": "string"}}, "required": None}}), with_property({"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "string", "description": None}}}}),
    with_property({"type": "object"}), with_property({"type": "object", "description": "x"}), with_property({"type": "object", "properties": {}}), with_property({"type": "object", "properties": None}), with_property({"type": "object", "properties": ["a"]}),
    with_property({"type": "object", "nullable": True, "properties": {"a": {"type": "string"}}, "required": ["a", "b"]}), with_property({"type": "object", "required": 7}), with_property({"type": "object", "required": []}),
    with_property({"type": "object", "note": {"type": "string", "description": "n"}, "other": 5, "default": None, "additionalProperties": {"type": "string"}, "title": "T", "required": ["note"]}),
    with_property({"type": "object", "properties": {"type": {"type": "string"}, "description": {"type": "string", "description": "d"}, "properties": {"type": "object", "properties": {}}, "required": {"type": "boolean"}, "nullable": {"type": "null"}}}),
    with_property({"description": {"a": 1}}), with_property({"description": ["x"]}), with_property({"description": 0}), with_property({"description": "@@1e400@@", "type": "string", "enum": ["@@123456789012345678901234567890123456789@@", "@@1e-7@@"]}),
    function("deep", description="d", parameters={"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object", "properties": {"c": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "object", "properties": {"e": {"type": "string"}}}}}}}}}}}}),
    function("many", description="d", parameters={"type": "object", "properties": {key: {"type": "string"} for key in KEYS}, "required": KEYS}),
]


def schema(depth=3):
    made = {}
    if chance(0.8):
        made["type"] = pick(["string", "string", "integer", "number", "boolean", "array", "object", "STRING", "null", ["string", "null"]])
    if chance(0.5):
        made["description"] = pick([text(4), "x", None, ""])
    if chance(0.2):
        made["enum"] = [value(1) for _ in range(RANDOM.randint(0, 3))]
    if chance(0.15):
        made["nullable"] = pick([True, False, None])
    if chance(0.2):
        made[pick(["title", "default", "minimum", "format", "anyOf", "$ref", "additionalProperties"])] = pick([None, text(1), number(), [{"type": "string"}], {"type": "string"}, False])
    if depth:
        if made.get("type") == "array" or chance(0.05):
            made["items"] = schema(depth - 1)
        if made.get("type") == "object" and chance(0.8):
            made["properties"] = {pick(KEYS): schema(depth - 1) for _ in range(RANDOM.randint(0, 3))}
            if chance(0.6):
                made["required"] = pick([[], list(made["properties"]), None])
    return made


def tool():
    parameters = {"type": "object", "properties": {pick(KEYS): schema() for _ in range(RANDOM.randint(0, 4))}}
    if chance(0.6):
        parameters["required"] = list(parameters["properties"])
    return function(pick(["get_temp", "now", "plan-2", "näme"]), description=pick([text(5), "Does it."]), parameters=parameters)


# ---- conversations

def part():
    kind = RANDOM.random()
    if kind < 0.6:
        return {"type": pick(["text", "text", "input_text"]), "text": text()}
    return {"type": pick(["image", "image_url", "audio", "input_audio", "video"]), pick(["url", "data", "path"]): "x"}


def content(thoughts=0.0):
    kind = RANDOM.random()
    if kind < 0.08:
        return None
    if kind < 0.13:
        return pick(["", " ", []])
    if kind < 0.3:
        return [part() for _ in range(RANDOM.randint(1, 4))]
    return text(8, thoughts)


IDS = ["c1", "c2", "c3", "c1"]
NAMES = ["get_temp", "now", "näme", "x<turn|>", "a.b"]


def call():
    name, given = pick(NAMES), arguments()
    made = {"name": name, "arguments": given}
    if chance(0.85):
        made = {"type": "function", "function": made}
    if chance(0.75):
        made = {"id": pick(IDS), **made}
    return made


def message(role):
    made = {"role": role}
    if chance(0.95):
        made["content"] = content(0.15 if role in ("assistant", "model") else 0.03)
    if role in ("assistant", "model"):
        if chance(0.3):
            made[pick(["reasoning", "reasoning_content"])] = pick([text(4), "Hm.", ""])
        if chance(0.45):
            made["tool_calls"] = [call() for _ in range(RANDOM.randint(1, 3))]
            if chance(0.5):
                made["content"] = None
        if chance(0.08):
            made["tool_responses"] = [
                {key: made for key, made in [("name", pick(NAMES + [""])), ("response", value())] if chance(0.9)}
                for _ in range(RANDOM.randint(1, 2))
            ]
    if role == "tool":
        if chance(0.7):
            made["tool_call_id"] = pick(IDS + ["wrong"])
        if chance(0.4):
            made["name"] = pick(NAMES)
    return made


SEQUENCES = """u|s u|d u|s|s u a u|u a|u a u|u u a|a u|a a u|u c|u c t|u c t a|u c t a u|u c t t a|u c t c t a|u c t c t|u c t u|u c a|u c u|u c c t|
u t a|t u|u a t u|s u a d u|u s u|u a a a u|u c t a c t u|u c t t u a|u a c t|u a c|s u c t a u c t|u t t t|a|t|u c t a a|u d c t a|c t u|u c t s u""".replace("\n", "").split("|")
ROLES = {"u": "user", "s": "system", "d": "developer", "a": "assistant", "t": "tool", "c": "assistant"}


def conversation(sequence):
    made = []
    for letter in sequence:
        role = "model" if letter == "a" and chance(0.1) else ROLES[letter]
        said = message(role)
        if letter == "c":
            said.setdefault("tool_calls", [call() for _ in range(RANDOM.randint(1, 2))])
            if chance(0.6):
                said["content"] = pick([None, ""])
        made.append(said)
    return made


def options():
    return {key: True for key, share in [("thinking", 0.4), ("no_prompt", 0.2), ("preserve", 0.3)] if chance(share)}


def cases():
    user = [{"role": "user", "content": "Hi"}]
    for index in range(len(ODD)):
        yield user, {"tools": [index]}
    for depth in (1, 5, 20, 30):
        yield user + [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": nested(depth)}}]}], {}
    yield [], {}
    yield [], {"thinking": True, "tools": [0]}
    for numbers in (NUMBERS[:9], NUMBERS[9:]):
        given = {f"k{index}": f"@@{written}@@" for index, written in enumerate(numbers)}
        for shape in (given, json.dumps(given), {"list": list(given.values())}):
            yield user + [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": shape}]}, {"role": "tool", "content": "x"}], {}
    for _ in range(8):
        for sequence in SEQUENCES:
            yield conversation(sequence.split()), options()
    for _ in range(120):
        yield conversation("".join(pick("uuuaacctttsd") for _ in range(RANDOM.randint(1, 9)))), options()
    # Turns of plain texts, such as every template takes.
    for count in list(range(1, 8)) * 10:
        turns = [{"role": "assistant" if index % 2 else "user", "content": text(8)} for index in range(count)]
        system = [{"role": "system", "content": text(8)}] if chance(0.4) else []
        yield system + turns, options()
    plain = len(POOL) - RANDOM_TOOLS
    for _ in range(110):
        tools = [RANDOM.randrange(plain, len(POOL)) for _ in range(RANDOM.randint(1, 3))]
        yield conversation(pick(["u", "su", "uct", "ucta", "suctu", "duct"])), {**options(), "tools": tools}


RANDOM_TOOLS = 60
POOL = ODD + [tool() for _ in range(RANDOM_TOOLS)]


# ---- what the templates are given

KINDS = {"input_text": "text"}


def said(message):
    """A message as our reader hands it to a template: one spelling of each thing."""
    made = {key: value for key, value in message.items() if value is not None}
    if made["role"] == "model":
        made["role"] = "assistant"
    if isinstance(made.get("content"), list):
        made["content"] = [{"type": KINDS.get(p["type"], p["type"]), **({"text": p["text"]} if "text" in p else {})} for p in made["content"]]
    for key in ("reasoning", "reasoning_content"):
        if made.get(key) == "":
            del made[key]
    thought = made.get("reasoning") or made.get("reasoning_content")
    if thought:
        made.update(reasoning=thought, reasoning_content=thought, thinking=thought)
    if "tool_calls" in made:
        made["tool_calls"] = [called(call) for call in made["tool_calls"]]
    order = ["role", "content", "reasoning", "reasoning_content", "thinking", "tool_calls", "tool_call_id", "name", "tool_responses"]
    return {key: made[key] for key in order if key in made}


def called(call):
    function = call.get("function", call)
    given = function["arguments"]
    if isinstance(given, str):
        given = json.loads(given) if given.strip() else None
    made = {"type": "function", "function": {"name": function["name"], "arguments": given or {}}}
    return {"id": call["id"], **made} if "id" in call else made


def declared(tool):
    """A declaration as our reader hands it to a template: whole, its function without null fields."""
    if "function" not in tool:
        tool = {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    return {**tool, "function": {key: value for key, value in tool["function"].items() if value is not None}}


# ---- branches

# What conditions of the official templates never are, by line: an object is a mapping and has written its properties
# before `required`, arguments are decoded, what is no content is undefined and so a sequence, media have three kinds.
CANONICAL = {"71 is never False", "78 is never False", "200 is never False", "249 is never False", "256 is never reached", "342 is never False"}
UNREACHED = {
    "chat_template.12b_26b_31b": CANONICAL,
    "chat_template.e2b_e4b": CANONICAL,
    "chat_template.e2b.launch": {"27 is never False", "193 is never False", "200 is never reached", "233 is never False"},
}


class Branches:
    """A template of which every condition notes what it was."""

    def __init__(self, source):
        environment = compile_template("").environment
        self.seen = {}
        tree = environment.parse(source)
        for kind in (nodes.If, nodes.CondExpr):
            for node in list(tree.find_all(kind)):
                key = (node.lineno, len(self.seen))
                self.seen[key] = set()
                node.test = nodes.Call(nodes.Name("_branch", "load"), [nodes.Const(key), node.test], [], None, None)
        tree.set_environment(environment)
        code = environment.compile(tree)
        self.template = jinja2.Template.from_code(environment, code, environment.make_globals({"_branch": self.branch}))

    def branch(self, key, value):
        self.seen[key].add(bool(value))
        return value

    def missed(self):
        never = [(line, not next(iter(seen)) if seen else "reached") for (line, _), seen in self.seen.items() if len(seen) < 2]
        return {f"{line} is never {what}" for line, what in never}


# ---- hashes

def hashed(text):
    """64 bits of FNV-1a."""
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def given(messages, options, pool):
    tools = [declared(pool[index]) for index in options.get("tools", [])]
    return dict(
        messages=[said(message) for message in messages],
        tools=tools or None,
        documents=None,
        add_generation_prompt=not options.get("no_prompt", False),
        enable_thinking=options.get("thinking", False),
        preserve_thinking=options.get("preserve", False),
        **SPECIAL,
    )


def render(template, context):
    try:
        return template.render(**context)
    except (jinja2.exceptions.TemplateError, TypeError, AttributeError):
        return None


def main():
    made = [[messages, options] for messages, options in cases()]
    written = json.dumps({"tools": POOL, "cases": made}, ensure_ascii=False, separators=(",", ":"))
    written = re.sub(r'\\?"@@(.*?)@@\\?"', r"\1", written)
    corpus = json.loads(written)
    files = {file.name.removesuffix(".jinja"): file for file in sorted(OFFICIAL.glob("*.jinja")) + sorted((HERE / "templates").glob("*.jinja"))}
    files["built_in"] = HERE / "../../../models/nano-e-4bit/chat_template.jinja"
    hashes = {}
    for name, file in files.items():
        template = compile_template(file.read_text())
        branches = Branches(file.read_text())
        texts = []
        for messages, options in corpus["cases"]:
            context = given(messages, options, corpus["tools"])
            text = render(template, context)
            assert render(branches.template, context) == text
            texts.append(text)
        failed = sum(text is None for text in texts)
        missed = branches.missed()
        print(f"{name}: {len(texts)} conversations, {failed} fail; {len(branches.seen)} branches, one way of {len(missed)}")
        assert missed == UNREACHED.get(name, missed), missed
        hashes[name] = "".join("-" * 16 if text is None else hashed(text) for text in texts)
    lines = written.replace("]],[[", "]],\n[[").replace("}],[[", "}],\n[[").replace("},[[{", "},\n[[{").replace("}],[[{", "}],\n[[{").replace(',{"type":"function","function":{"name"', ',\n{"type":"function","function":{"name"')
    lines = lines.removesuffix("}") + ',\n"hashes":' + json.dumps(hashes, separators=(",", ":")).replace('","', '",\n"') + "}\n"
    path = HERE / "goldens" / "corpus.json"
    path.write_text(lines)
    assert json.loads(lines)["cases"] == corpus["cases"]
    print(path.name, len(made), path.stat().st_size)


main()
