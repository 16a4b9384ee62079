"""What was sampled, and what it is read as: a row per family and per way to get it wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import Reply, ReplyCall

THINK = ("<think>", "</think>")
TOOLS = (
    Tool(
        "buy",
        schema={"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}},
    ),
    Tool("sell"),
)
WRAP = Tool(
    "wrap",
    schema={
        "type": "object",
        "properties": {
            "gift": {"type": "boolean"},
            "ribbon": {"type": ["integer", "null"]},
            "note": {"type": ["boolean", "string"]},
        },
    },
)
WRITE = Tool(
    "write",
    schema={
        "type": "object",
        "$defs": {
            "To": {"type": "object"},
            "Size": {"enum": ["1", "2"]},
            "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Size"}]},
        },
        "properties": {
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "size": {"enum": ["1", "2", None]},
            "tip": {"oneOf": [{"type": "string"}, {"anyOf": [{"type": "number"}, {"type": "array"}]}]},
            "to": {"$ref": "#/$defs/To"},
            "from": {"anyOf": [{"$ref": "#/$defs/To"}, {"type": "null"}]},
            "box": {"$ref": "#/$defs/Loop"},
            "lost": {"$ref": "#/$defs/None"},
            "free": {"description": "Anything."},
            "either": {"anyOf": [{}, {"type": "null"}]},
        },
    },
)


@dataclass(frozen=True)
class Case:
    said: str
    reply: Reply
    form: str = "hermes"
    reasoning: bool = False
    stop: tuple[str, ...] = ()
    stopped_on: str | None = None
    tools: tuple[Tool, ...] = TOOLS
    bare: str = ""
    whole: bool = True
    think: tuple[str, str] = THINK


def call(name: str = "buy", arguments: str = '{"item": "kiwi", "n": 7}', own: str = "") -> ReplyCall:
    return ReplyCall(name, arguments, own)


ONE = '<tool_call>\n{"name": "buy", "arguments": {"item": "kiwi", "n": 7}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "buy", "arguments": {"item": \n</tool_call>'
DEEP = "<tool_call>" + '{"a":' * 20_000

CASES: dict[str, Case] = {
    "text is text": Case("Hello, 你好 🙂!", Reply("Hello, 你好 🙂!")),
    "white space around a text reply stays": Case("  Hello \n\n", Reply("  Hello \n\n")),
    "nothing is an empty reply": Case("", Reply()),
    "one call": Case(ONE, Reply(tool_calls=(call(),))),
    "the closer is not text": Case(ONE + "<|im_end|>", Reply(tool_calls=(call(),))),
    "arguments keep the spaces and order they were sampled with": Case(
        '<tool_call>{"arguments" :{ "n":7,"item":"ki\\u0077i" } , "name":"buy"}</tool_call>',
        Reply(tool_calls=(call(arguments='{ "n":7,"item":"ki\\u0077i" }'),)),
    ),
    "two calls, white space between them is markup": Case(
        ONE + "\n" + ONE.replace("buy", "sell"), Reply(tool_calls=(call(), call("sell")))
    ),
    "words before a call lose the white space next to it": Case(
        "I buy.\n\n" + ONE, Reply("I buy.", tool_calls=(call(),))
    ),
    "words after a call stay": Case(
        ONE + "\nDone.", Reply("\nDone.", tool_calls=(call(),), order=(("call", 1), ("text", 6)))
    ),
    "a call that was not closed counts if it is whole": Case(
        ONE.removesuffix("\n</tool_call>"), Reply(tool_calls=(call(),))
    ),
    "a call that forgot its closer ends at the next": Case(
        ONE.removesuffix("\n</tool_call>") + ONE, Reply(tool_calls=(call(), call()))
    ),
    "a broken call is text, and malformed": Case(BROKEN, Reply(BROKEN, malformed=(BROKEN,))),
    "a broken call does not harm the next": Case(
        BROKEN + ONE, Reply(BROKEN, tool_calls=(call(),), malformed=(BROKEN,))
    ),
    "a call cut by length is text": Case(ONE[:40], Reply(ONE[:40], malformed=(ONE[:40],))),
    "arguments that are no object are malformed": Case(
        '<tool_call>{"name": "buy", "arguments": "x"}</tool_call>',
        Reply(
            '<tool_call>{"name": "buy", "arguments": "x"}</tool_call>',
            malformed=('<tool_call>{"name": "buy", "arguments": "x"}</tool_call>',),
        ),
    ),
    "a call without a name is malformed": Case(
        '<tool_call>{"arguments": {}}</tool_call>',
        Reply(
            '<tool_call>{"arguments": {}}</tool_call>',
            malformed=('<tool_call>{"arguments": {}}</tool_call>',),
        ),
    ),
    "nesting without end is malformed, not a crash": Case(DEEP, Reply(DEEP, malformed=(DEEP,))),
    "without tools, markup is text": Case(ONE, Reply(ONE), tools=()),
    "a stray closer is text": Case("a </tool_call> b", Reply("a </tool_call> b")),
    "thoughts are reasoning": Case(
        "<think>\nHm, 你好.\n</think>\n\nHello.", Reply("Hello.", reasoning="Hm, 你好.")
    ),
    "the prompt may have opened the reasoning": Case(
        "Hm.\n</think>\n\nHello.", Reply("Hello.", reasoning="Hm."), reasoning=True
    ),
    "an empty thought is none": Case("<think>\n\n</think>\n\nHello.", Reply("Hello.")),
    "a thought cut by length is reasoning": Case("<think>\nHm", Reply(reasoning="Hm")),
    "a later opener is text": Case("Use <think> tags.", Reply("Use <think> tags.")),
    "a second thought is text": Case(
        "<think>a</think>b<think>c</think>", Reply("b<think>c</think>", reasoning="a")
    ),
    "a call after a thought": Case(
        "<think>\nHm.\n</think>\n\n" + ONE, Reply(reasoning="Hm.", tool_calls=(call(),))
    ),
    "a draft of a call inside a thought is thought": Case(
        "<think>\nMaybe " + ONE + " or not.\n</think>\n\nNo.",
        Reply("No.", reasoning="Maybe " + ONE + " or not."),
    ),
    "a call ends a thought that is never closed": Case(
        "<think>\nHm.\n" + ONE, Reply(reasoning="Hm.", tool_calls=(call(),))
    ),
    "a call in a thought that was cut is thought": Case(
        "<think>\nMaybe " + ONE + " but that is",
        Reply(reasoning="Maybe " + ONE + " but that is"),
        whole=False,
    ),
    "half a call in a thought that was cut is thought": Case(
        "<think>\nMaybe " + ONE[:40], Reply(reasoning="Maybe " + ONE[:40]), whole=False
    ),
    "a call behind a thought counts in a turn that was cut": Case(
        "<think>\nHm.\n</think>\n\n" + ONE, Reply(reasoning="Hm.", tool_calls=(call(),)), whole=False
    ),
    "a stop string is cut": Case(
        "Answer: 4\nObserv", Reply("Answer: 4\n"), stop=("Observ",), stopped_on="Observ"
    ),
    "what the last token adds to a stop string is cut with it": Case(
        "Answer END.", Reply("Answer "), stop=("END",), stopped_on="END"
    ),
    "half a stop string that did not stop is text": Case(
        "Answer OBS", Reply("Answer OBS"), stop=("OBSERVE",)
    ),
    "a stop string inside a call breaks it": Case(
        ONE.replace("kiwi", "kiSTOP"),
        Reply(
            '<tool_call>\n{"name": "buy", "arguments": {"item": "ki',
            malformed=('<tool_call>\n{"name": "buy", "arguments": {"item": "ki',),
        ),
        stop=("STOP",),
        stopped_on="STOP",
    ),
    "a stop string inside a thought is cut": Case(
        "<think>\nHm STOP", Reply(reasoning="Hm "), stop=("STOP",), stopped_on="STOP"
    ),
    "a stop string that is a marker": Case(
        ONE, Reply(tool_calls=(call(),)), stop=("</tool_call>",), stopped_on="</tool_call>"
    ),
    "a stop string across a marker": Case(
        "a\n" + ONE, Reply("a"), stop=("\n<tool_call>",), stopped_on="\n<tool_call>"
    ),
    "qwen3-coder": Case(
        "Yes.\n<tool_call>\n<function=buy>\n<parameter=item>\n12\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
        "</function>\n</tool_call>",
        Reply("Yes.", tool_calls=(call(arguments='{"item":"12","n":7}'),)),
        form="qwen3-xml",
    ),
    "what a template prints as Python does is a boolean, or nothing, where one is declared": Case(
        "<tool_call>\n<function=wrap>\n<parameter=gift>\nTrue\n</parameter>\n<parameter=ribbon>\nNone\n</parameter>\n"
        "<parameter=note>\nFalse\n</parameter>\n<parameter=loose>\nFalse\n</parameter>\n</function>\n</tool_call>",
        Reply(
            tool_calls=(call("wrap", '{"gift":true,"ribbon":null,"note":"False","loose":"False"}'),),
        ),
        form="qwen3-xml",
        tools=(WRAP,),
    ),
    "qwen3-coder without parameters": Case(
        "<tool_call>\n<function=sell>\n</function>\n</tool_call>",
        Reply(tool_calls=(call("sell", "{}"),)),
        form="qwen3-xml",
    ),
    "glm": Case(
        "<tool_call>buy\n<arg_key>item</arg_key>\n<arg_value>kiwi pie</arg_value>\n<arg_key>n</arg_key>\n"
        "<arg_value>7</arg_value>\n</tool_call>",
        Reply(tool_calls=(call(arguments='{"item":"kiwi pie","n":7}'),)),
        form="glm",
    ),
    "minimax": Case(
        '<minimax:tool_call>\n<invoke name="buy">\n<parameter name="item">kiwi</parameter>\n'
        '<parameter name="n">7</parameter>\n</invoke>\n</minimax:tool_call>',
        Reply(tool_calls=(call(arguments='{"item":"kiwi","n":7}'),)),
        form="minimax-m2",
    ),
    "mistral array": Case(
        '[TOOL_CALLS] [{"name": "buy", "arguments": {"n": 7}}, {"name": "sell", "arguments": {}}]',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="mistral",
    ),
    "behind a stop string at which the engine did not stop": Case(
        f"STOP{ONE}",
        Reply("STOP", tool_calls=(call(),)),
        stop=("STOP",),
    ),
    "mistral array, with the ids it sampled; an odd one is none": Case(
        '[TOOL_CALLS] [{"name": "buy", "arguments": {}, "id": "aB3dE6gH9"}, '
        '{"name": "sell", "arguments": {}, "id": "<s>"}]',
        Reply(tool_calls=(call("buy", "{}", "aB3dE6gH9"), call("sell", "{}"))),
        form="mistral",
    ),
    "mistral with [CALL_ID]": Case(
        "[TOOL_CALLS]buy[CALL_ID]aB3dE6gH9[ARGS]{}",
        Reply(tool_calls=(call("buy", "{}", "aB3dE6gH9"),)),
        form="mistral-v11",
    ),
    "mistral with [ARGS]": Case(
        '[TOOL_CALLS]buy[ARGS]{"n": 7}', Reply(tool_calls=(call(arguments='{"n": 7}'),)), form="mistral-v11"
    ),
    "two mistral calls with [ARGS]": Case(
        '[TOOL_CALLS]buy[ARGS]{"n": 7}[TOOL_CALLS]sell[ARGS]{}',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="mistral-v11",
    ),
    "deepseek v3": Case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>buy\n```json\n"
        '{"n": 7}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="deepseek",
    ),
    "deepseek v3.1, two calls": Case(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>buy<｜tool▁sep｜>{"n": 7}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>sell<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="deepseek-v3.1",
    ),
    "kimi k2": Case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>"
        '{"n": 7}<|tool_call_end|><|tool_calls_section_end|>',
        Reply(tool_calls=(call(arguments='{"n": 7}', own="functions.buy:0"),)),
        form="kimi-k2",
    ),
    "one of two kimi calls is broken": Case(
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>{"n": '
        "<|tool_call_end|><|tool_call_begin|>functions.sell:1<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        Reply(
            '<|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>{"n": <|tool_call_end|>',
            tool_calls=(call("sell", "{}", "functions.sell:1"),),
            malformed=(
                '<|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>{"n": <|tool_call_end|>',
            ),
        ),
        form="kimi-k2",
    ),
    "llama 3 with its tag": Case(
        '<|python_tag|>{"name": "buy", "parameters": {"n": 7}}; {"name": "sell", "parameters": {}}',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="llama3",
    ),
    "llama 3 without its tag": Case(
        '{"name": "buy", "parameters": {"n": 7}}',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="llama3",
        bare="{",
    ),
    "llama 4, behind a blank that may come alone": Case(
        ' \n{"name": "buy", "parameters": {"n": 7}}',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="",
        bare="{",
    ),
    "llama 4, a blank and no call": Case(" \n", Reply(" \n"), form="", bare="{"),
    "bare JSON of no declared tool is an answer": Case(
        '{"name": "rob", "parameters": {}}',
        Reply('{"name": "rob", "parameters": {}}'),
        form="llama3",
        bare="{",
    ),
    "bare JSON that is no call is an answer": Case(
        '{"answer": 4} ', Reply('{"answer": 4} '), form="llama3", bare="{"
    ),
    "granite": Case(
        '<|tool_call|>[{"name": "buy", "arguments": {"n": 7}}]',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="granite",
    ),
    "phi-4": Case(
        'Ok. <|tool_call|>[{"name": "buy", "arguments": {"n": 7}}]<|/tool_call|>',
        Reply("Ok.", tool_calls=(call(arguments='{"n": 7}'),)),
        form="phi4",
    ),
    "command a": Case(
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "buy", "parameters": {"n": 7}}\n]<|END_ACTION|>',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="cohere",
    ),
    "jamba": Case(
        ' <tool_calls>[\n    {"name": "buy", "arguments": {"n": 7}}\n]</tool_calls>',
        Reply(tool_calls=(call(arguments='{"n": 7}'),)),
        form="jamba",
    ),
    "seed oss": Case(
        "Ok.\n<seed:tool_call>\n<function=buy>\n<parameter=item>ki wi</parameter>\n<parameter=n>7</parameter>\n"
        "</function>\n</seed:tool_call>",
        Reply("Ok.", tool_calls=(call(arguments='{"item":"ki wi","n":7}'),)),
        form="seed-oss",
    ),
    "nemotron nano v2, two calls in one list": Case(
        '<TOOLCALL>[{"name": "buy", "arguments": {"n": 7}}, {"name": "sell", "arguments": {}}]</TOOLCALL>',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="nemotron-v2",
    ),
    "apertus, a call is an object of its name": Case(
        '<|tools_prefix|>[{"buy": {"n": 7}}, {"sell": {"to": [1, {}]}}]<|tools_suffix|>',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", '{"to": [1, {}]}'))),
        form="apertus",
    ),
    "apertus, anything else is malformed": Case(
        '<|tools_prefix|>[{"buy": 7}]<|tools_suffix|>',
        Reply(
            '<|tools_prefix|>[{"buy": 7}]<|tools_suffix|>',
            malformed=('<|tools_prefix|>[{"buy": 7}]<|tools_suffix|>',),
        ),
        form="apertus",
    ),
    "deepseek v3.2, texts and JSON, two calls": Case(
        'Ok.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="buy">\n<｜DSML｜parameter name="item" string="true">7'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">[7, "x"]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="sell">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Reply("Ok.", tool_calls=(call(arguments='{"item":"7","n":[7,"x"]}'), call("sell", "{}"))),
        form="deepseek-v3.2",
    ),
    "deepseek v4, a value that is no JSON is a text": Case(
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="buy">\n<｜DSML｜parameter name="n" string="false">{"x'
        "</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        Reply(tool_calls=(call(arguments='{"n":"{\\"x"}'),)),
        form="deepseek-v4",
    ),
    "minicpm 5, a value in CDATA is a text": Case(
        '<function name="buy"><param name="item"><![CDATA[a < b & </param> c]]></param>'
        '<param name="n">7</param></function>',
        Reply(tool_calls=(call(arguments='{"item":"a < b & </param> c","n":7}'),)),
        form="minicpm5",
    ),
    "minicpm 5, a value in CDATA may spell CDATA's end": Case(
        '<function name="buy"><param name="item"><![CDATA[a]]> b]]></param></function>',
        Reply(tool_calls=(call(arguments='{"item":"a]]> b"}'),)),
        form="minicpm5",
    ),
    "minicpm 5, CDATA that does not end is taken as it stands": Case(
        '<function name="buy"><param name="item"><![CDATA[a</param></function>',
        Reply(tool_calls=(call(arguments='{"item":"<![CDATA[a"}'),)),
        form="minicpm5",
    ),
    "minicpm 5, words between arguments are malformed": Case(
        '<function name="buy"><param name="n">7</param>so<param name="n">8</param></function>',
        Reply(
            '<function name="buy"><param name="n">7</param>so<param name="n">8</param></function>',
            malformed=(
                '<function name="buy"><param name="n">7</param>so<param name="n">8</param></function>',
            ),
        ),
        form="minicpm5",
    ),
    "functionary v3.1, two calls behind words": Case(
        'Ok.<function=buy>{"n": 7}</function><function=sell>{}</function>',
        Reply("Ok.", tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="functionary-v3.1",
    ),
    "functionary v3.1, arguments that are no object are malformed": Case(
        "<function=buy>7</function>",
        Reply("<function=buy>7</function>", malformed=("<function=buy>7</function>",)),
        form="functionary-v3.1",
    ),
    "internlm 2": Case(
        'Ok.<|action_start|><|plugin|>\n{"name": "buy", "arguments": {"n": 7}}<|action_end|>',
        Reply("Ok.", tool_calls=(call(arguments='{"n": 7}'),)),
        form="internlm2",
    ),
    "granite 20b, calls in a row": Case(
        '<function_call> {"name": "buy", "arguments": {"n": 7}}\n<function_call> {"name": "sell", "arguments": {}}',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="granite-20b-fc",
    ),
    "gigachat 3.1": Case(
        'Ok.<|function_call|>{"name": "buy", "arguments": {"n": 7}}',
        Reply("Ok.", tool_calls=(call(arguments='{"n": 7}'),)),
        form="gigachat3",
    ),
    "xlam, a list that is the whole turn": Case(
        '[{"name": "buy", "arguments": {"n": 7}}, {"name": "sell", "arguments": {}}]',
        Reply(tool_calls=(call(arguments='{"n": 7}'), call("sell", "{}"))),
        form="",
        bare="[",
    ),
    "xlam, any other list is an answer": Case("[1, 2]", Reply("[1, 2]"), form="", bare="["),
    "gemma 4, every kind of value, in the order it was sampled": Case(
        'Ok.<|tool_call>call:buy{n:7,item:<|"|>ki,w}i: "a"<|"|>,to:{<|"|>a b<|"|>:[true,null,-1.5,<|"|>x<|"|>,[]]}}'
        "<tool_call|>",
        Reply(
            "Ok.",
            tool_calls=(
                call(arguments='{"n":7,"item":"ki,w}i: \\"a\\"","to":{"a b":[true,null,-1.5,"x",[]]}}'),
            ),
        ),
        form="gemma4",
    ),
    "gemma 4, a bare value where the schema says string": Case(
        "<|tool_call>call:buy{item:12,n:12}<tool_call|>",
        Reply(tool_calls=(call(arguments='{"item":"12","n":12}'),)),
        form="gemma4",
    ),
    "gemma 4, two calls, one without its prefix and without arguments": Case(
        "<|tool_call>call:buy{n:7}<tool_call|><|tool_call>:sell{}<tool_call|>",
        Reply(tool_calls=(call(arguments='{"n":7}'), call("sell", "{}"))),
        form="gemma4",
    ),
    "gemma 4, cut inside a string": Case(
        '<|tool_call>call:buy{item:<|"|>ki',
        Reply('<|tool_call>call:buy{item:<|"|>ki', malformed=('<|tool_call>call:buy{item:<|"|>ki',)),
        form="gemma4",
    ),
    "gemma 4, nesting without end is malformed, not a crash": Case(
        "<|tool_call>call:buy{n:" + "[" * 50_000,
        Reply(
            "<|tool_call>call:buy{n:" + "[" * 50_000, malformed=("<|tool_call>call:buy{n:" + "[" * 50_000,)
        ),
        form="gemma4",
    ),
    "gemma 4's label is no thought": Case(
        "<|channel>thought\nHm, thought\n<channel|>Yes.",
        Reply("Yes.", reasoning="Hm, thought"),
        form="gemma4",
        think=("<|channel>", "<channel|>"),
    ),
    "gemma 4, an empty thought is none": Case(
        "<|channel>thought\n<channel|>Yes.",
        Reply("Yes."),
        form="gemma4",
        think=("<|channel>", "<channel|>"),
    ),
    "gemma 4, a thought that only begins like the label": Case(
        "<|channel>though<channel|>Yes.",
        Reply("Yes.", reasoning="though"),
        form="gemma4",
        think=("<|channel>", "<channel|>"),
    ),
    "gemma 4, cut inside the label": Case(
        "<|channel>tho",
        Reply(reasoning="tho"),
        form="gemma4",
        think=("<|channel>", "<channel|>"),
    ),
    "lfm2, every kind of value": Case(
        "<|tool_call_start|>[buy(item='ki\"wi', n=7), sell(to={\"a\": [True, false, None, null, -1.5, ('x',)]})]"
        "<|tool_call_end|>",
        Reply(
            tool_calls=(
                call(arguments='{"item":"ki\\"wi","n":7}'),
                call("sell", '{"to":{"a":[true,false,null,null,-1.5,["x"]]}}'),
            )
        ),
        form="lfm2",
    ),
    "lfm2, dashes in names, and a number below zero": Case(
        "<|tool_call_start|>[look-up_2(item-id='a-b', n=-3), buy(n=7)]<|tool_call_end|>",
        Reply(tool_calls=(call("look-up_2", '{"item-id":"a-b","n":-3}'), call(arguments='{"n":7}'))),
        form="lfm2",
    ),
    "lfm2, a line break inside a string": Case(
        "<|tool_call_start|>[buy(item='a\nb\\'c')]<|tool_call_end|>",
        Reply(tool_calls=(call(arguments='{"item":"a\\nb\'c"}'),)),
        form="lfm2",
    ),
    "lfm2, a backslash that escapes nothing is one": Case(
        r"<|tool_call_start|>[buy(item='\d+\\n\'')]<|tool_call_end|>",
        Reply(tool_calls=(call(arguments=json.dumps({"item": "\\d+\\n'"}, separators=(",", ":"))),)),
        form="lfm2",
    ),
    "lfm2, anything but literals is no call": Case(
        "<|tool_call_start|>[buy(item=open('x'))]<|tool_call_end|>",
        Reply(
            "<|tool_call_start|>[buy(item=open('x'))]<|tool_call_end|>",
            malformed=("<|tool_call_start|>[buy(item=open('x'))]<|tool_call_end|>",),
        ),
        form="lfm2",
    ),
    "lfm2, nesting without end is malformed, not a crash": Case(
        "<|tool_call_start|>[buy(n=" + "[" * 50_000,
        Reply(
            "<|tool_call_start|>[buy(n=" + "[" * 50_000,
            malformed=("<|tool_call_start|>[buy(n=" + "[" * 50_000,),
        ),
        form="lfm2",
    ),
    "lfm2, a number beyond float64 is no call": Case(
        "<|tool_call_start|>[buy(n=1e999)]<|tool_call_end|>",
        Reply(
            "<|tool_call_start|>[buy(n=1e999)]<|tool_call_end|>",
            malformed=("<|tool_call_start|>[buy(n=1e999)]<|tool_call_end|>",),
        ),
        form="lfm2",
    ),
}
WRITTEN: dict[str, tuple[str, str, str]] = {
    "JSON in a text that may be null is a text": ("note", '{"version": 1.10}', '"{\\"version\\": 1.10}"'),
    "a number in a text that may be null is a text": ("note", "1.10", '"1.10"'),
    "a boolean in a text that may be null is a text": ("note", "true", '"true"'),
    "a null that may be a text is null": ("note", "null", "null"),
    "a number in a list of texts is a text": ("size", "1", '"1"'),
    "a null in a list of values is null": ("size", "null", "null"),
    "a number that may be a text is a number": ("tip", "2.5", "2.5"),
    "a list that may be a text is a list": ("tip", "[1]", "[1]"),
    "an object that may be a text or a number is a text": ("tip", "{}", '"{}"'),
    "a reference to an object is followed": ("to", '{"a": 1}', '{"a":1}'),
    "a reference in a choice is followed": ("from", '{"a": 1}', '{"a":1}'),
    "references in a circle end": ("box", "1", '"1"'),
    "a reference that leads nowhere leaves the text": ("lost", "1", '"1"'),
    "a number in a text of no type is a text": ("free", "007", '"007"'),
    "JSON in a text of no type is a text": ("free", "[1, 2.0]", '"[1, 2.0]"'),
    "a choice that says nothing leaves the text": ("either", "7", '"7"'),
    "an argument that is not declared is a text": ("other", "7", '"7"'),
}
"""Argument of `write`, how it is written, and what is read."""
CASES |= {
    name: Case(
        f"<tool_call>\n<function=write>\n<parameter={key}>\n{said}\n</parameter>\n</function>\n</tool_call>",
        Reply(tool_calls=(call("write", f'{{"{key}":{read}}}'),)),
        form="qwen3-xml",
        tools=(WRITE,),
    )
    for name, (key, said, read) in WRITTEN.items()
}
