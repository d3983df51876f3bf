"""Kinds of tools: what they are called, how they are described, and how people ask for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from codegen.embedded.turns import article, pick
from codegen.embedded.words import COLOURS, NOUNS, city, invented, name

Value = str | int


@dataclass(frozen=True, slots=True)
class Slot:
    """A kind of argument: its usual parameter names, its values, and how a sentence brings it in."""

    names: tuple[str, ...]
    type: str
    description: str
    value: Callable[[random.Random], Value]
    phrases: tuple[str, ...]
    enum: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of tool; slots are written `{slot}` in its questions."""

    topic: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    questions: tuple[str, ...]
    slots: tuple[str, ...]
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _of(*values: str) -> Callable[[random.Random], Value]:
    return lambda rng: pick(rng, values)


def _between(low: int, high: int) -> Callable[[random.Random], Value]:
    return lambda rng: rng.randint(low, high)


def _thing(rng: random.Random) -> Value:
    return invented(rng) if rng.random() < 0.3 else pick(rng, NOUNS)


def _phrase(rng: random.Random) -> Value:
    return " ".join(str(_thing(rng)) for _ in range(pick(rng, (1, 2, 2, 3))))


def _clock(rng: random.Random) -> Value:
    return f"{rng.randint(1, 23)}:{pick(rng, ('00', '15', '30', '45'))}"


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "today", "tomorrow")
_LANGUAGES = ("French", "German", "Spanish", "Italian", "English", "Japanese", "Dutch", "Greek", "Polish")
# fmt: off
SLOTS: dict[str, Slot] = {
    "city": Slot(("city", "city", "location", "place", "town"), "string", "Name of the city", city, ("in {city}", "near {city}", "for {city}")),
    "person": Slot(("name", "person", "recipient", "user", "contact", "to"), "string", "Name of the person", name, ("for {person}", "to {person}", "with {person}")),
    "day": Slot(("day", "date", "when"), "string", "Day of the week", _of(*_DAYS), ("on {day}", "for {day}")),
    "time": Slot(("time", "hour", "at"), "string", "Time of the day", _clock, ("at {time}",)),
    "count": Slot(("count", "number", "amount", "quantity", "n"), "integer", "How many", _between(2, 99), ("{count} times", "with number {count}")),
    "minutes": Slot(("minutes", "duration", "length"), "integer", "Duration in minutes", _between(1, 90), ("for {minutes} minutes",)),
    "price": Slot(("price", "max_price", "limit", "budget"), "integer", "Highest price", _between(5, 999), ("under {price} euros", "for {price} dollars")),
    "colour": Slot(("color", "colour", "paint"), "string", "The colour", _of(*COLOURS), ("in {colour}", "with colour {colour}")),
    "language": Slot(("language", "target_language", "target", "lang"), "string", "Target language", _of(*_LANGUAGES), ("in {language}", "to {language}")),
    "unit": Slot(("unit", "units", "format", "scale"), "string", "The unit", _of("celsius", "fahrenheit"), ("in {unit}",), ("celsius", "fahrenheit")),
    "thing": Slot(("item", "object", "thing", "product", "subject"), "string", "The thing", _thing, ("about {thing}", "of {thing}", "with {thing}")),
    "text": Slot(("text", "message", "query", "content", "title"), "string", "The text", _phrase, ('saying "{text}"', 'called "{text}"', "about {text}")),
    "code": Slot(("id", "code", "order_id", "ticket", "number"), "integer", "The number", _between(1, 9999), ("with id {code}", "number {code}")),
    "figure": Slot(("a", "x", "first", "left", "low", "min"), "integer", "A number", _between(0, 99), ("with {figure}",)),
}
_PAIR = {"figure": ("a", "x", "first", "num1", "left"), "figure2": ("b", "y", "second", "num2", "right")}

FAMILIES: tuple[Family, ...] = (
    Family("weather", ("get_weather", "weather", "get_current_weather", "weather_in_city", "fetch_weather"),
           ("Get the weather for a city.", "Get the current weather", "Weather in a place", "Tells the weather."),
           ("What is the weather in {city}?", "How is the weather in {city}?", "What's the weather like in {city}?", "Weather in {city}?",
            "Is it raining in {city}?", "Tell me the weather in {city}.", "Will it be sunny in {city}?"), ("city",)),
    Family("weather", ("get_temperature", "temperature", "get_current_temperature", "get_current_weather"),
           ("Get the temperature of a city.", "Get the current weather", "Temperature in a place"),
           ("What is the temperature in {city} in {unit}?", "How warm is it in {city} in {unit}?", "What is the temperature in {city}?",
            "What is the weather like in {city} in {unit}?", "How cold is it in {city}?"), ("city", "unit")),
    Family("forecast", ("get_forecast", "forecast", "weather_forecast"), ("Get the forecast for a day.", "Weather forecast for a place and day"),
           ("What is the forecast for {city} on {day}?", "Give me the forecast in {city} for {day}.", "Forecast for {city} on {day}?"), ("city", "day")),
    Family("time", ("get_time", "current_time", "clock", "get_local_time"), ("Get the local time of a city.", "Current time in a place", "Tells the time."),
           ("What time is it in {city}?", "Tell me the time in {city}.", "What is the local time in {city}?", "Time in {city}?"), ("city",)),
    Family("sum", ("add", "add_numbers", "sum", "calculate_sum", "plus"), ("Add two numbers.", "Compute the sum of two numbers"),
           ("What is {figure} plus {figure2}?", "Add {figure} and {figure2}.", "What is {figure} + {figure2}?", "Compute the sum of {figure} and {figure2}."),
           ("figure", "figure2"), _PAIR),
    Family("product", ("multiply", "multiply_numbers", "product", "times"), ("Multiply two numbers.", "Compute the product of two numbers"),
           ("What is {figure} times {figure2}?", "Multiply {figure} by {figure2}.", "What is {figure} * {figure2}?"), ("figure", "figure2"), _PAIR),
    Family("mail", ("send_email", "send_mail", "email", "write_email"), ("Send an email.", "Send a mail to somebody"),
           ('Send an email to {person} saying "{text}".', 'Write an email to {person}: "{text}"', "Send a mail to {person} about {text}.",
            'Email {person} "{text}".'), ("person", "text"), {"text": ("body", "subject", "message", "text", "content")}),
    Family("message", ("send_message", "send_sms", "text_person", "message"), ("Send a message to a person.", "Send a text message"),
           ('Send a message to {person} saying "{text}".', 'Tell {person} "{text}".', 'Message {person}: "{text}"', 'Send {person} the message "{text}".'),
           ("person", "text")),
    Family("timer", ("set_timer", "start_timer", "timer"), ("Set a timer.", "Start a timer in minutes"),
           ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer for {minutes} minutes.", "Wake me in {minutes} minutes."), ("minutes",)),
    Family("alarm", ("set_alarm", "alarm", "create_alarm"), ("Set an alarm.", "Create an alarm at a time"),
           ("Set an alarm for {time}.", "Wake me up at {time}.", "Set an alarm at {time} on {day}.", "Alarm at {time}."), ("time", "day")),
    Family("search", ("search", "web_search", "search_web", "find_information", "google"), ("Search the web.", "Find information about something"),
           ("Search for {text}.", 'Search the web for "{text}".', "Look up {text}.", "Find information about {text}.", "Search {text}."), ("text",),
           {"text": ("query", "q", "text", "search", "topic")}),
    Family("translate", ("translate", "translate_text", "translator"), ("Translate a text.", "Translate text to another language"),
           ('Translate "{text}" to {language}.', "How do you say {text} in {language}?", "Translate {text} into {language}."), ("text", "language")),
    Family("music", ("play_music", "play_song", "play"), ("Play a song.", "Play music"),
           ('Play the song "{text}".', "Play {text}.", 'Play "{text}" by {person}.', "I want to hear {text}."), ("text", "person"),
           {"text": ("song", "title", "track"), "person": ("artist", "singer", "by")}),
    Family("table", ("book_table", "reserve_table", "restaurant_booking"), ("Book a table in a restaurant.", "Reserve a table"),
           ("Book a table for {count} people at {time}.", "Reserve a table for {count} on {day} at {time}.", "Book a table for {count} people."),
           ("count", "time", "day"), {"count": ("people", "guests", "persons", "party_size")}),
    Family("flight", ("find_flights", "search_flights", "book_flight", "get_flights"), ("Find flights between two cities.", "Search for flights"),
           ("Find flights from {city} to {city2}.", "I want to fly from {city} to {city2}.", "Book a flight from {city} to {city2} on {day}.",
            "Flights from {city} to {city2}?"), ("city", "city2", "day"),
           {"city": ("from", "origin", "departure", "from_city"), "city2": ("to", "destination", "arrival", "to_city")}),
    Family("light", ("turn_on_light", "switch_light", "light_on"), ("Turn on the light in a room.", "Switch a lamp on"),
           ("Turn on the light in the {thing}.", "Switch on the {thing} light.", "Make the {thing} bright."), ("thing",), {"thing": ("room", "place", "location", "where")}),
    Family("stock", ("get_stock_price", "stock_price", "stock_quote"), ("Get the price of a stock.", "Current stock price"),
           ("What is the stock price of {text}?", "How much is the stock of {text}?", "Stock price of {text}?"), ("text",), {"text": ("symbol", "company", "ticker", "stock")}),
    Family("event", ("create_event", "add_event", "calendar_add", "schedule_meeting"), ("Create a calendar event.", "Add an event to the calendar"),
           ('Create an event "{text}" on {day}.', 'Add "{text}" to my calendar on {day} at {time}.', "Schedule {text} on {day} at {time}."), ("text", "day", "time"),
           {"text": ("title", "event", "name", "summary")}),
    Family("reminder", ("set_reminder", "remind_me", "create_reminder"), ("Set a reminder.", "Remind the user of something"),
           ("Remind me of the {thing} at {time}.", "Set a reminder for the {thing} at {time}.", "Remind me of the {thing}."), ("thing", "time"),
           {"thing": ("text", "subject", "what", "reminder")}),
    Family("order", ("order_food", "order", "place_order", "buy_item"), ("Order something.", "Place an order in the shop"),
           ("Order {count} {thing}s.", "I want to order {count} {thing}s.", "Buy {count} {thing}s.", "Order {count} pieces of {thing}."), ("thing", "count")),
    Family("news", ("get_news", "news", "latest_news", "read_news"), ("Get the latest news.", "News about a topic"),
           ("What is the latest news about {thing}?", "Give me news about {thing}.", "Any news about {thing}?"), ("thing",), {"thing": ("topic", "subject", "about")}),
    Family("random", ("random_number", "get_random", "roll"), ("Get a random number.", "Draw a number between two limits"),
           ("Give me a random number between {figure} and {figure2}.", "Roll a number from {figure} to {figure2}."), ("figure", "figure2"),
           {"figure": ("min", "low", "from", "start"), "figure2": ("max", "high", "to", "end")}),
    Family("define", ("define_word", "dictionary", "lookup_word"), ("Look a word up in the dictionary.", "Define a word"),
           ("Define the word {thing}.", 'Look up the word "{thing}" in the dictionary.', "What does the word {thing} mean?"), ("thing",), {"thing": ("word", "term", "entry")}),
    Family("order_status", ("get_order_status", "track_order", "order_status"), ("Get the status of an order.", "Track an order"),
           ("Where is my order {code}?", "What is the status of order {code}?", "Track order {code}.", "Check order number {code}."), ("code",)),
    Family("user", ("get_user", "find_user", "lookup_user", "user_info"), ("Get information about a user.", "Find a user"),
           ("Who is the user {person}?", "Find the user {person}.", "Get the user with name {person}.", "Show me the profile of {person}."), ("person",),
           {"person": ("username", "name", "user", "login")}),
)
# fmt: on
_VERBS = """open close start stop find show check count clean book buy sell paint move send read write draw make build print save
delete update share rent repair record watch cancel create copy measure list""".split()


def invented_family(rng: random.Random) -> Family:
    """Make up a tool: a verb, a noun and up to three kinds of arguments."""
    verb, noun = pick(rng, _VERBS), pick(rng, NOUNS) if rng.random() < 0.8 else invented(rng)
    slots = tuple(rng.sample([slot for slot in SLOTS if slot != "figure"], pick(rng, (1, 1, 2, 2, 3))))
    phrases = [pick(rng, SLOTS[slot].phrases) for slot in slots]
    optional = len(slots) > 1 and rng.random() < 0.3
    stems = (f"{verb} the {noun}", f"{verb} {article(noun)}", f"{verb} my {noun}")
    questions = [_sentence(rng, pick(rng, stems), phrases)]
    if optional:
        questions.append(_sentence(rng, pick(rng, stems), phrases[:-1]))
    described = (
        f"{verb.capitalize()} {article(noun)}.",
        f"{verb.capitalize()} the {noun}",
        f"This tool can {verb} {article(noun)}.",
    )
    return Family(noun, (f"{verb}_{noun}",), described, tuple(questions), slots)


def _sentence(rng: random.Random, stem: str, phrases: list[str]) -> str:
    text = " ".join((stem, *phrases))
    form = pick(
        rng,
        ("{x}.", "{x}.", "{x}.", "Can you {x}?", "I want to {x}.", "Could you {x}?", "I need you to {x}."),
    )
    text = form.replace("{x}", text)
    return text[0].upper() + text[1:]
