"""What people see of effects, through a client: the queue, one case, alerts, and the story of an object."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Final

import anyio

from ..journal.code_registry import read_code
from ..journal.docket_reading import DOCKET_MAX, read_effects_of
from ..journal.effect_cases import Alert, EffectCase
from ..journal.effects import EffectEntry
from ..journal.errors import CallError, StoreUnavailable
from ..journal.key import Key
from ..journal.keyspace import PartitionSpace
from ..journal.ledger_reading import Found, read_alerts, read_queue, spaces_of
from ..journal.receivers_registry import ReceiverCard, read_receivers
from ..journal.refusals import key_error
from ..journal.story import Story
from ..journal.story_reading import STORY_ENTRIES, read_story
from ..journal.surroundings import look
from ..journal.types_registry import read_types, unused
from ..objects.reconciliation import sent_as
from ..objects.virtual_object import VirtualObject
from .bounds import check_number, check_operation_id, check_text
from .effect_cases import Desk, alert_of, case_of
from .open_client import OpenClient
from .places import name_if_any, name_of

#: Effects of the queue that are shown unless told otherwise, the most urgent ones.
QUEUE_MAX: Final = 100
ALERTS_MAX: Final = 1_000
#: How often alerts are looked for that are raised meanwhile.
ALERTS_SECONDS: Final = 1.0
HANDFUL: Final = 256


class EffectDesk(OpenClient):
    """The part of `Client` that shows effects, and those who settle them, what is to be known."""

    async def reconcile_list(
        self, object_type: VirtualObject | str | None = None, *, receiver: str | None = None, limit: int = QUEUE_MAX
    ) -> tuple[EffectCase, ...]:
        """Return the effects that people have to settle, those whose time ends first in front.

        Args:
            object_type: The object type, itself or by its name; without it, all of them.
            receiver: The one receiver whose effects are wanted.
            limit: How many at most.

        Raises:
            UnknownObject: The namespace has no such type.
            StoreError: The store is away, or refuses.
        """
        check_number("limit", limit)
        if receiver is not None:
            check_text("receiver", receiver)
        spaces = await spaces_of(self.store, name_if_any(object_type))
        cards, code = await read_receivers(self.store), await read_code(self.store)
        best: list[Found[EffectEntry]] = []
        async for page in read_queue(self.store, spaces):
            wanted = [each for each in page if each.entry is not None and receiver in (None, each.entry.receiver)]
            best = heapq.nsmallest(limit, [*best, *wanted], key=lambda each: (each.due_ms, str(each.space)))
        times = await self._times([each.space for each in best])
        return tuple(
            case_of(each.space, each.item.key, each.entry, Desk(cards, code, times[each.space]))
            for each in best
            if each.entry is not None
        )

    async def _times(self, spaces: list[PartitionSpace]) -> dict[PartitionSpace, int]:
        return {space: (await look(self.store, space, [], []))[0].now_ms for space in dict.fromkeys(spaces)}

    async def reconcile_show(
        self, object_type: VirtualObject | str, key: Key | str, operation_id: str, /
    ) -> EffectCase:
        """Return all that is known of one effect, and what a person may do about it now.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            operation_id: The operation id, as its handler wrote it.

        Raises:
            CallError: The object has no such effect.
            UnknownObject: The namespace has no such type.
            StoreError: The store is away, or refuses.
        """
        name, key_text = name_of(object_type), str(Key.parse(key))
        check_operation_id(operation_id)
        space = await self._places.place(name, key_text)
        effects = space.effects(key_text)
        around, (data,) = await look(self.store, space, [("HGET", effects, operation_id)], [effects])
        if data is None:
            raise CallError(f"{name} {key_text} has no effect {operation_id!r}")
        desk = Desk(await read_receivers(self.store), await read_code(self.store), around.now_ms)
        return case_of(space, key_text, EffectEntry.decode(data), desk)

    async def effects(
        self, object_type: VirtualObject | str, key: Key | str, /, *, limit: int = DOCKET_MAX
    ) -> tuple[EffectCase, ...]:
        """Return the effects of one object, settled ones too, in the order in which they were first intended.

        Args:
            object_type: The object type, itself or by its name.
            key: The object.
            limit: About how many are read at most; of an object that has more, any of them.

        Raises:
            UnknownObject: The namespace has no such type.
            StoreError: The store is away, or refuses.
        """
        check_number("limit", limit)
        name, key_text = name_of(object_type), str(Key.parse(key))
        space = await self._places.place(name, key_text)
        around, _ = await look(self.store, space, [], [])
        docket = await read_effects_of(self.store, space, key_text, limit=limit)
        desk = Desk(await read_receivers(self.store), await read_code(self.store), around.now_ms)
        return tuple(case_of(space, key_text, each, desk) for each in docket.effects)

    async def alerts(
        self, object_type: VirtualObject | str | None = None, *, limit: int = ALERTS_MAX
    ) -> tuple[Alert, ...]:
        """Return what people have to hear of: times that have passed, and approvals about to expire; the newest ones.

        Args:
            object_type: The object type, itself or by its name; without it, all of them.
            limit: How many at most.

        Returns:
            The alerts, oldest first.

        Raises:
            UnknownObject: The namespace has no such type.
            StoreError: The store is away, or refuses.
        """
        check_number("limit", limit)
        newest: list[Alert] = []
        spaces = await spaces_of(self.store, name_if_any(object_type))
        async for page in read_alerts(self.store, spaces):
            newest = heapq.nlargest(limit, [*newest, *map(alert_of, page)], key=lambda each: each.at)
        return tuple(sorted(newest, key=lambda each: each.at))

    async def follow_alerts(self, object_type: VirtualObject | str | None = None) -> AsyncGenerator[Alert]:
        """Return all alerts that are kept, and then each that is raised, once, for as long as it is iterated.

        Args:
            object_type: The object type, itself or by its name; without it, all, and those that come later.

        Raises:
            UnknownObject: The namespace has no such type.
            StoreError: The store is away, or refuses.
        """
        after: dict[PartitionSpace, bytes] = {}
        while True:
            spaces = await spaces_of(self.store, name_if_any(object_type))
            async for page in read_alerts(self.store, spaces, after):
                for noticed in sorted(page, key=lambda each: each.at_ms):
                    yield alert_of(noticed)
                    after[noticed.space] = noticed.entry_id
            await anyio.sleep(ALERTS_SECONDS)

    async def explain(
        self, target: VirtualObject | str, key: Key | str | None = None, /, *, entries: int = STORY_ENTRIES
    ) -> Story:
        """Return the story of one object, over all of its invocations, in words for people.

        Args:
            target: The object type, itself or by its name; without a key, the object, whose type is looked for. Where
                that can't be read of some types, the story's `problems` say so.
            key: The object.
            entries: How many of the newest entries of its history are told.

        Raises:
            CallError: No type, or more than one, has an object of this key.
            UnknownObject: The namespace has no such type.
            InvalidKey: The text is no key.
            StoreError: The store is away, or refuses.
        """
        check_number("entries", entries)
        parsed = Key.parse(str(target) if key is None else key)
        name, unread = await self._type_that_has(parsed) if key is None else (name_of(target), ())
        key_text = str(parsed)
        space = await self._places.place(name, key_text)
        story = await read_story(self.store, space, parsed, self._sent_as, entries=entries)
        return replace(story, problems=(*story.problems, *unread))

    def _sent_as(self, card: ReceiverCard | None, type_name: str, key_text: str, operation: str) -> str:
        return sent_as(card, self.store.namespace, type_name, key_text, operation)

    async def _type_that_has(self, key: Key) -> tuple[str, tuple[str, ...]]:
        """Return the one object type that has an object of a key, and of which types nobody can say whether they do."""
        key_text = str(key)
        names = sorted(await read_types(self.store))
        spaces = [await self._places.place(name, key_text) for name in names]
        found: list[str] = []
        unread: list[str] = []
        for start in range(0, len(spaces), HANDFUL):
            group = spaces[start : start + HANDFUL]
            for space, answer in zip(group, await self._have(group, key_text), strict=True):
                if isinstance(answer, StoreUnavailable):
                    unread.append(f"whether {space.type_name} has an object {key_text}: {answer.why}")
                elif answer:
                    found.append(space.type_name)
        if len(found) == 1:
            return found[0], tuple(unread)
        if found:
            raise CallError(f"{key_text} is an object of several types: say which of {', '.join(found)}")
        if unread:
            raise StoreUnavailable(
                self.store.url, f"no other type has anything of it; can't be read: {'; '.join(unread)}"
            )
        if not names:
            raise unused(self.store.namespace)
        raise CallError(f"no object type has anything of {key_text}; looked at: {', '.join(names)}")

    async def _have(self, spaces: Sequence[PartitionSpace], key_text: str) -> list[bool | StoreUnavailable]:
        """Return whether each partition has an object of a key, or why that can't be read."""
        keys = [
            (each.object(key_text), each.lane(key_text), each.effects(key_text), each.set_aside(key_text))
            for each in spaces
        ]
        # One key in each read: a slot that is being moved answers those.
        replies = iter(await self.store.each([("EXISTS", key) for those in keys for key in those]))
        told: list[bool | StoreUnavailable] = []
        for those in keys:
            answers = [next(replies) for _ in those]
            lost = next((each for each in answers if isinstance(each, Exception)), None)
            if lost is not None and not isinstance(lost, StoreUnavailable):
                raise key_error(lost, those[0], self.store.url) from lost
            told.append(lost or any(answers))
        return told
