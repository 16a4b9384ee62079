"""The same errands with OpenAI's agents SDK, written as its documentation writes agents.

The SDK finds its endpoint in OPENAI_BASE_URL and OPENAI_API_KEY; `shop` is ../shop/shop.py (PYTHONPATH in
job.yaml).
"""

import os

from agents import Agent, Runner, function_tool, set_default_openai_api

from shop import Shop, leave_result

set_default_openai_api("chat_completions")
shop = Shop()


@function_tool
def buy(item: str, n: int) -> str:
    """Buy n of an item."""
    return shop.trade("buy", item, n)


@function_tool
def sell(item: str, n: int) -> str:
    """Sell n of an item."""
    return shop.trade("sell", item, n)


@function_tool
def pay(receipt: int) -> str:
    """Pay a receipt."""
    return shop.pay(receipt)


agent = Agent(
    name="Shop assistant",
    instructions="Do what you are asked to do and report the receipt number.",
    tools=[buy, sell, pay],
    model=os.environ.get("SANDGATE_MODEL", "shop"),
)

if __name__ == "__main__":
    result = Runner.run_sync(agent, os.environ["SANDGATE_PROMPT"], max_turns=4)
    shop.answer(result.final_output)
    leave_result(shop)
