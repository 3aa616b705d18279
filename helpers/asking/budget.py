"""What a run may spend: calls and money, held before a request goes out and settled by what its answer says."""

import asyncio
import contextlib
import json

from helpers.asking.faults import BudgetSpent

_MARGIN = 1.1  # a later prompt may have somewhat more tokens a byte than any before it


def money(prompt, cached, completion, price):
    """Cost of token counts (numbers or arrays) at a stack's price per million tokens, in the price's currency."""
    return ((prompt - cached) * price["input"] + cached * price["cached_input"] + completion * price["output"]) / 1e6


def cost(row, price):
    """Cost of one recorded answer in the price's currency; None where the endpoint sent no usage."""
    if row.get("prompt_tokens") is None or row.get("completion_tokens") is None:
        return None
    return money(row["prompt_tokens"], row.get("cached_tokens") or 0, row["completion_tokens"], price)


def _size(body):
    """Bytes of a request's messages."""
    return len(json.dumps(body["messages"], ensure_ascii=False).encode(errors="replace"))


class Budget:
    """Calls and money (in the currency of the stack's price) of one run; None or 0 is no limit.

    ``used`` is the number of calls made, ``spent`` what was answered by the answers' usage, or the estimate where they
    have none. Before a request goes out, the most that it can cost is held: its prompt at the largest number of tokens
    a byte seen so far and 10% more (before the first answer one token a byte, more than any tokenizer makes),
    uncached, and all tokens it may generate. So the money is not passed by requests that are out together.
    """

    def __init__(self, calls=None, money=None):
        self.calls, self.money = calls or None, money or None
        self.used, self.spent, self.held = 0, 0.0, 0.0
        self._out = 0  # requests whose money is held; a sum of floats need not come back to zero
        self._rate = None
        self._settled = asyncio.Event()

    @property
    def calls_left(self):
        """Calls that may still be made, or None without a limit."""
        return None if self.calls is None else self.calls - self.used

    def most(self, body, price):
        """The most that a request can cost, in the price's currency."""
        size = _size(body)
        tokens = size if self._rate is None else min(size, _MARGIN * self._rate * size)
        return money(tokens, 0, body.get("max_tokens") or 0, price)

    async def hold(self, body, price):
        """Count one call and hold its money; waits where only requests that are out stand in the way.

        Raises BudgetSpent where the budget has no room for it.
        """
        if self.money is not None:
            while self.spent + self.held + self.most(body, price) > self.money and self._out:
                self._settled.clear()
                await self._settled.wait()
        if self.calls is not None and self.used >= self.calls:
            raise BudgetSpent(f"the budget of {self.calls} calls is spent")
        estimate = 0.0 if self.money is None else self.most(body, price)
        if self.money is not None and self.spent + estimate > self.money:
            raise BudgetSpent(
                f"the budget of {self.money:g} {price['currency']} is spent: {self.spent:.4g} is charged by usage, and "
                f"the next question can cost {estimate:.2g}"
            )
        self.used += 1
        self.held += estimate
        self._out += 1
        return estimate

    def settle(self, estimate, body, price, row):
        """Release what was held; charge the answer's usage, the estimate where it has none, nothing for None."""
        self._out -= 1
        self.held = max(0.0, self.held - estimate) if self._out else 0.0
        if row is not None and price:
            charged = cost(row, price)
            self.spent += estimate if charged is None else charged
            if charged is not None and self.money is not None:
                self._rate = max(self._rate or 0.0, row["prompt_tokens"] / _size(body))
        self._settled.set()

    @contextlib.asynccontextmanager
    async def room_for(self, body, price):
        """Hold one request while the block asks it; the block fills the yielded dict with the answer's usage.

        Where it stays empty the estimate is charged: a request that failed may have been answered all the same. An
        error whose ``charged`` is false says that it was not, one whose ``offline`` is true that no call was made.
        """
        held, bill = await self.hold(body, price), {}
        try:
            yield bill
        except Exception as error:
            bill = bill if getattr(error, "charged", True) else None
            self.used -= getattr(error, "offline", False)
            raise
        finally:
            self.settle(held, body, price, bill)
