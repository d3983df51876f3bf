"""Facts worth knowing, as tables: what each relation says, the ways to ask, and the pairs it holds for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of pairs, the sentence that states one, and the questions it answers."""

    statement: str
    questions: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    rows = (row.split(":") for row in table.replace("\n", " ").split(","))
    return tuple((left.strip(), right.strip()) for left, right in rows)


CAPITALS = _pairs("""France:Paris, Germany:Berlin, Italy:Rome, Spain:Madrid, Portugal:Lisbon, Austria:Vienna, Switzerland:Bern,
Belgium:Brussels, the Netherlands:Amsterdam, Denmark:Copenhagen, Sweden:Stockholm, Norway:Oslo, Finland:Helsinki,
Iceland:Reykjavik, Ireland:Dublin, the United Kingdom:London, England:London, Scotland:Edinburgh, Wales:Cardiff, Poland:Warsaw,
the Czech Republic:Prague, Slovakia:Bratislava, Hungary:Budapest, Romania:Bucharest, Bulgaria:Sofia, Greece:Athens,
Turkey:Ankara, Russia:Moscow, Ukraine:Kyiv, Estonia:Tallinn, Latvia:Riga, Lithuania:Vilnius, Belarus:Minsk, Croatia:Zagreb,
Serbia:Belgrade, Slovenia:Ljubljana, Albania:Tirana, Malta:Valletta, Cyprus:Nicosia, Luxembourg:Luxembourg, Egypt:Cairo,
Morocco:Rabat, Algeria:Algiers, Tunisia:Tunis, Libya:Tripoli, Kenya:Nairobi, Ethiopia:Addis Ababa, Nigeria:Abuja, Ghana:Accra,
Senegal:Dakar, Angola:Luanda, Zambia:Lusaka, Zimbabwe:Harare, Namibia:Windhoek, Uganda:Kampala, Rwanda:Kigali, Somalia:Mogadishu,
Sudan:Khartoum, Madagascar:Antananarivo, Japan:Tokyo, China:Beijing, South Korea:Seoul, North Korea:Pyongyang, India:New Delhi,
Pakistan:Islamabad, Bangladesh:Dhaka, Nepal:Kathmandu, Thailand:Bangkok, Vietnam:Hanoi, Indonesia:Jakarta,
Malaysia:Kuala Lumpur, the Philippines:Manila, Mongolia:Ulaanbaatar, Iran:Tehran, Iraq:Baghdad, Syria:Damascus,
Lebanon:Beirut, Jordan:Amman, Saudi Arabia:Riyadh, Qatar:Doha, Afghanistan:Kabul, Australia:Canberra, New Zealand:Wellington,
Canada:Ottawa, the United States:Washington, Mexico:Mexico City, Cuba:Havana, Jamaica:Kingston, Haiti:Port-au-Prince,
Brazil:Brasília, Argentina:Buenos Aires, Chile:Santiago, Peru:Lima, Colombia:Bogotá, Venezuela:Caracas, Ecuador:Quito,
Bolivia:Sucre, Paraguay:Asunción, Uruguay:Montevideo, Costa Rica:San José, Panama:Panama City""")

RELATIONS: tuple[Relation, ...] = (
    Relation(
        "The capital of {a} is {b}.",
        (
            "What is the capital of {a}?",
            "What's the capital of {a}?",
            "Which city is the capital of {a}?",
            "Capital of {a}?",
            "Name the capital of {a}.",
            "Tell me the capital of {a}.",
            "What is the capital city of {a}?",
            "{a}: capital?",
            "Do you know the capital of {a}?",
            "Can you tell me the capital of {a}?",
            "What city is the capital of {a}?",
            "Please tell me the capital of {a}.",
            "I forgot the capital of {a}. What is it?",
        ),
        CAPITALS,
    ),
    Relation(
        "{b} is the capital of {a}.",
        (
            "{b} is the capital of which country?",
            "Which country has the capital {b}?",
            "What country is {b} the capital of?",
            "Of which country is {b} the capital?",
        ),
        tuple((country, city) for country, city in CAPITALS if country not in ("England", "Luxembourg")),
    ),
    Relation(
        "{a} is in {b}.",
        (
            "Which continent is {a} in?",
            "On which continent is {a}?",
            "What continent is {a} in?",
            "{a} is in which continent?",
            "Tell me the continent of {a}.",
            "In which continent do you find {a}?",
        ),
        _pairs("""France:Europe, Germany:Europe, Italy:Europe, Spain:Europe, Sweden:Europe, Poland:Europe, Norway:Europe,
        Greece:Europe, Austria:Europe, Ireland:Europe, Egypt:Africa, Kenya:Africa, Nigeria:Africa, Morocco:Africa, Ghana:Africa,
        Ethiopia:Africa, Uganda:Africa, Japan:Asia, China:Asia, India:Asia, Thailand:Asia, Vietnam:Asia, Nepal:Asia,
        Mongolia:Asia, Iran:Asia, Canada:North America, Mexico:North America, Cuba:North America,
        the United States:North America, Brazil:South America, Argentina:South America, Chile:South America, Peru:South America,
        Colombia:South America, Bolivia:South America"""),
    ),
    Relation(
        "{a} says {b}.",
        (
            "What sound does {a} make?",
            "What does {a} say?",
            "Which sound does {a} make?",
            "Tell me the sound of {a}.",
            "How does {a} sound?",
            "What noise does {a} make?",
        ),
        _pairs("""a cow:moo, a dog:woof, a cat:meow, a duck:quack, a sheep:baa, a pig:oink, a horse:neigh, a frog:ribbit, a lion:roar,
        a bee:buzz, an owl:hoot, a snake:hiss, a rooster:cock-a-doodle-doo, a mouse:squeak, a bird:tweet, a wolf:howl, a donkey:hee-haw,
        a hen:cluck, a crow:caw, a goose:honk"""),
    ),
    Relation(
        "{a} has {b} legs.",
        (
            "How many legs does {a} have?",
            "How many legs has {a} got?",
            "Tell me how many legs {a} has.",
            "What is the number of legs of {a}?",
            "Number of legs of {a}?",
            "Count the legs of {a}.",
        ),
        _pairs("""a dog:four, a cat:four, a horse:four, a cow:four, a sheep:four, a pig:four, a lion:four, an elephant:four,
        a mouse:four, a frog:four, a rabbit:four, a spider:eight, an ant:six, a bee:six, a fly:six, a butterfly:six, a beetle:six,
        a bird:two, a duck:two, a human:two, a chicken:two, an owl:two, a penguin:two, a snake:no, a fish:no, a worm:no, a crab:ten"""),
    ),
    Relation(
        "{a} is {b}.",
        (
            "What colour is {a}?",
            "What color is {a}?",
            "Which colour is {a}?",
            "Tell me the colour of {a}.",
            "What is the color of {a}?",
            "What is the colour of {a}?",
            "Colour of {a}?",
        ),
        _pairs("""the sky:blue, grass:green, snow:white, blood:red, the sun:yellow, a banana:yellow, a lemon:yellow, coal:black,
        milk:white, a tomato:red, a carrot:orange, an orange:orange, chocolate:brown, a strawberry:red, a cucumber:green, salt:white,
        a flamingo:pink, an elephant:grey, a pumpkin:orange, a cherry:red, a leaf:green, the night:black, the sea:blue, honey:golden,
        a frog:green, a violet:purple"""),
    ),
    Relation(
        "The opposite of {a} is {b}.",
        (
            "What is the opposite of {a}?",
            "What's the opposite of {a}?",
            "Opposite of {a}?",
            "Give me the opposite of {a}.",
            "Tell me the opposite of {a}.",
            "Name the opposite of {a}.",
            "Which word is the opposite of {a}?",
            "What word means the opposite of {a}?",
        ),
        _pairs("""hot:cold, cold:hot, big:small, small:big, up:down, down:up, left:right, right:left, day:night, night:day, yes:no,
        no:yes, happy:sad, sad:happy, fast:slow, slow:fast, old:young, young:old, open:closed, closed:open, full:empty, empty:full,
        light:dark, dark:light, hard:soft, soft:hard, tall:short, long:short, high:low, low:high, rich:poor, poor:rich, good:bad,
        bad:good, strong:weak, weak:strong, early:late, late:early, black:white, white:black, wet:dry, dry:wet, true:false,
        false:true, inside:outside, first:last, last:first, near:far, far:near, clean:dirty, dirty:clean, easy:difficult,
        loud:quiet, quiet:loud, before:after, after:before, love:hate, war:peace, win:lose, push:pull, begin:end, always:never"""),
    ),
    Relation(
        "The chemical symbol of {a} is {b}.",
        (
            "What is the chemical symbol of {a}?",
            "What's the chemical symbol for {a}?",
            "What is the symbol for {a}?",
            "Chemical symbol of {a}?",
            "Tell me the chemical symbol of {a}.",
            "Which symbol does {a} have?",
        ),
        _pairs("""hydrogen:H, helium:He, lithium:Li, carbon:C, nitrogen:N, oxygen:O, fluorine:F, neon:Ne, sodium:Na, magnesium:Mg,
        aluminium:Al, silicon:Si, phosphorus:P, sulfur:S, chlorine:Cl, argon:Ar, potassium:K, calcium:Ca, iron:Fe, nickel:Ni,
        copper:Cu, zinc:Zn, silver:Ag, tin:Sn, iodine:I, gold:Au, mercury:Hg, lead:Pb, uranium:U, platinum:Pt"""),
    ),
    Relation(
        "There are {b} in {a}.",
        (
            "How many {unit} are in {a}?",
            "How many {unit} are there in {a}?",
            "How many {unit} does {a} have?",
            "Tell me how many {unit} are in {a}.",
            "{a} has how many {unit}?",
            "How many {unit} make {a}?",
        ),
        _pairs("""a minute:60 seconds, an hour:60 minutes, a day:24 hours, a week:7 days, a year:12 months, a metre:100 centimetres,
        a kilometre:1000 metres, a kilogram:1000 grams, a litre:1000 millilitres, a dozen:12 pieces, a century:100 years,
        a decade:10 years, a centimetre:10 millimetres, a foot:12 inches, a tonne:1000 kilograms, a dollar:100 cents,
        a euro:100 cents, a leap year:366 days, a millennium:1000 years, a yard:3 feet"""),
    ),
    Relation(
        "{a} is planet number {b} from the Sun.",
        (
            "Which planet number is {a}?",
            "Which number is {a} from the Sun?",
            "Which place from the Sun does {a} have?",
            "What number is {a} among the planets?",
        ),
        _pairs("Mercury:1, Venus:2, Earth:3, Mars:4, Jupiter:5, Saturn:6, Uranus:7, Neptune:8"),
    ),
    Relation(
        "{a} is called {b}.",
        (
            "What is {a} called?",
            "What do you call {a}?",
            "How is {a} called?",
            "What is the word for {a}?",
            "Name for {a}?",
        ),
        _pairs("""a young dog:a puppy, a young cat:a kitten, a young cow:a calf, a young horse:a foal, a young sheep:a lamb,
        a young pig:a piglet, a young duck:a duckling, a young bear:a cub, a young lion:a cub, a young frog:a tadpole, a young hen:a chick,
        a young goat:a kid, a young deer:a fawn, a young swan:a cygnet, a young kangaroo:a joey"""),
    ),
    Relation(
        "{a} is {b}.",
        (
            "What is {a}?",
            "Do you know what {a} is?",
            "Tell me what {a} is.",
            "Please tell me: what is {a}?",
            "Can you name {a}?",
        ),
        _pairs("""the largest planet:Jupiter, the smallest planet:Mercury, the largest ocean:the Pacific Ocean, the highest mountain:Mount Everest,
        the largest animal:the blue whale, the fastest land animal:the cheetah, the tallest animal:the giraffe, the red planet:Mars,
        the closest star to Earth:the Sun, the longest river in Africa:the Nile, the largest continent:Asia, the smallest continent:Australia,
        the largest country:Russia, the hottest planet:Venus, the coldest continent:Antarctica, the freezing point of water:0 degrees Celsius,
        the boiling point of water:100 degrees Celsius, the largest desert:Antarctica, the hardest gem:diamond, the language of Brazil:Portuguese,
        the language of France:French, the language of Germany:German, the language of Japan:Japanese, the language of Spain:Spanish,
        the language of Mexico:Spanish, the language of Italy:Italian, the language of Egypt:Arabic, the language of Russia:Russian,
        the currency of Japan:the yen, the currency of Germany:the euro, the currency of Sweden:the krona, the currency of India:the rupee,
        the currency of Russia:the rouble, the currency of the United States:the dollar, the currency of England:the pound"""),
    ),
    Relation(
        "{b} wrote {a}.",
        (
            "Who wrote {a}?",
            "Who is the author of {a}?",
            "Which author wrote {a}?",
            "{a} was written by whom?",
        ),
        _pairs("""Romeo and Juliet:William Shakespeare, Hamlet:William Shakespeare, Don Quixote:Miguel de Cervantes, Faust:Goethe,
        The Odyssey:Homer, War and Peace:Leo Tolstoy, Oliver Twist:Charles Dickens, Pride and Prejudice:Jane Austen,
        Moby Dick:Herman Melville, Frankenstein:Mary Shelley, Dracula:Bram Stoker, Les Misérables:Victor Hugo,
        The Time Machine:H. G. Wells, Peter Pan:J. M. Barrie, Alice in Wonderland:Lewis Carroll"""),
    ),
    Relation(
        "{a} is {b}.",
        (
            "What is {a}?",
            "Explain {a}.",
            "What does {a} mean?",
            "Tell me what {a} is.",
            "Define {a}.",
            "Can you explain {a}?",
        ),
        _pairs("""deep learning:machine learning with many layers of neurons, machine learning:how a program learns from examples,
        a language model:a program that predicts the next word, a token:a small piece of text, a computer:a machine that follows a program,
        a dictionary:a book that explains words, a library:a place where books are kept, water:a clear liquid that we drink,
        a volcano:a mountain that can throw out fire, a bakery:a shop that sells bread, a river:water that flows to the sea,
        gravity:the force that pulls things down, a forest:a place with many trees, rain:water that falls from clouds,
        a server:a program that answers requests, Python:a programming language, music:sound that is nice to hear"""),
    ),
    Relation(
        "In {a}, {b}.",
        (
            "How do you say {unit} in {a}?",
            "What is {unit} in {a}?",
            "Translate {unit} to {a}.",
            "Say {unit} in {a}.",
        ),
        _pairs("""French:hello is bonjour, German:hello is hallo, Spanish:hello is hola, Italian:hello is ciao, Portuguese:hello is olá,
        Japanese:hello is こんにちは, Chinese:hello is 你好, Swedish:hello is hej, French:thank you is merci, German:thank you is danke,
        Spanish:thank you is gracias, Italian:thank you is grazie, Japanese:thank you is ありがとう, Chinese:thank you is 谢谢,
        Portuguese:thank you is obrigado, French:goodbye is au revoir, Spanish:goodbye is adiós, German:goodbye is tschüss,
        Italian:goodbye is arrivederci, French:yes is oui, German:yes is ja, Spanish:yes is sí, French:water is eau, German:water is Wasser,
        Spanish:water is agua, French:cat is chat, German:cat is Katze, Spanish:cat is gato, French:good morning is bonjour,
        German:good morning is guten Morgen, Spanish:good morning is buenos días"""),
    ),
)


def fill(pattern: str, pair: tuple[str, str]) -> str:
    """Write a pair into a statement or a question, with a capital at the start."""
    subject, value = pair
    unit = value.split(" is ")[0] if " is " in value else value.split(" ")[-1]
    text = pattern.format(a=subject, b=value, unit=unit)
    return text[0].upper() + text[1:]
