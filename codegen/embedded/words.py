"""Words to copy, spell and tell stories about: everyday ones, names, places, and invented ones."""

from __future__ import annotations

import random

from codegen.embedded.turns import pick

NOUNS = """apple arrow baby bag ball banana basket bee bell bird boat book bottle box bread bridge brush bus butter button cake
camera candle car card carrot cat chair cheese child circle clock cloud coat coffee coin cow cup dance day desk doctor dog
door dragon dream dress drum duck eagle ear egg elephant engine eye farm father feather field fire fish flag flower food
forest fork fox friend frog fruit game garden gate gift girl glass goat gold grass hammer hand hat heart hill honey horse
house ice island jacket juice key king kitchen kite knife ladder lake lamp leaf lemon letter light lion machine map market
milk mirror money monkey moon morning mother mountain mouse music nail neck needle nest night nose ocean onion orange owl
oven paint paper park path pen pencil penguin piano picture pig pilot pizza plane planet plate pocket potato prince
princess queen rabbit rain ring river road robot rock roof room rose sail salt sand school sea seed shadow sheep shell ship
shirt shoe silver sister sky smile snake snow soap sock song soup spider spoon star station stone storm story street sugar
summer sun table tail tea teacher tiger time tower town toy train tree truck turtle umbrella valley village violin voice
wall watch water wave whale wheel wind window winter wizard wolf world yellow zebra zoo""".split()
VERBS = """add ask bake begin bring build buy call carry catch clean climb close come cook count cut draw drink drive eat fall
find fly follow give go grow hear help hide hold jump keep know laugh learn leave listen look lose love make meet move open
paint pay play pull push read ride run say see sell send show sing sit sleep speak stand start stop swim take talk teach
tell think throw travel turn visit wait walk want wash wear win work write""".split()
ADJECTIVES = """big brave bright brown busy calm clever cold cool curious dark dry early easy fast fine fresh friendly full funny
gentle good green happy hard heavy high honest hot huge hungry kind large late lazy light little lonely long loud lucky new
nice old polite poor proud quick quiet red rich round sad safe sharp short shy silent silly slow small smart soft strange
strong sweet tall tiny tired warm wet white wide wild wise yellow young""".split()
OTHERS = """the and with under over near behind between hello world please today tomorrow always never here there one two three
four five every some many from into after before together again maybe because this that we you they my your""".split()
WORDS = NOUNS + VERBS + ADJECTIVES + OTHERS + ["hello", "world"] * 4  # what everybody tries first
NAMES = """Tom Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Wendy Max
Zoe Alice Bob Carol Dan Eve Frank Gina Hugo Iris Jonas Lena Marco Nina Oscar Petra Quinn Ruth Simon Tara Uma Vera Will Yara
Lucas Maria Peter Julia Adam Sara John Mary Lily Omar Chen Ravi Aiko José Zoé Jürgen Renée André""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Oslo Prague Dublin Lisbon Athens Cairo Tokyo Delhi Lima Boston Chicago Denver
Dallas Seattle Austin Miami Toronto Sydney Moscow Warsaw Munich Hamburg Milan Naples Lyon Geneva Zurich Kyoto Mumbai Bangkok
Manila Nairobi Lagos Havana Brussels Helsinki Stockholm Budapest Istanbul München Zürich Málaga""".split()
COLOURS = "red blue green yellow black white brown orange purple pink grey silver golden".split()

_ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr pl pr sh sl sp st th tr".split()
_VOWELS = "a e i o u a e i o u ai ea ee oo ou ie".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "nd", "st", "ck", "ng", "p", "x"]


def invented(rng: random.Random) -> str:
    """Make up a word of one to three syllables that nobody has seen before."""
    syllables = pick(rng, (1, 2, 2, 2, 3))
    return "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(syllables))


def word(rng: random.Random) -> str:
    """Draw a word: mostly an everyday one, often an invented one."""
    return invented(rng) if rng.random() < 0.3 else pick(rng, WORDS)


def name(rng: random.Random) -> str:
    """Draw a first name, known or invented."""
    return invented(rng).capitalize() if rng.random() < 0.3 else pick(rng, NAMES)


def city(rng: random.Random) -> str:
    """Draw a city, known or invented, of one word or two."""
    roll = rng.random()
    if roll < 0.1:
        return pick(rng, ("New", "Old", "San", "Port", "Los", "Saint")) + " " + invented(rng).capitalize()
    return invented(rng).capitalize() if roll < 0.35 else pick(rng, CITIES)
