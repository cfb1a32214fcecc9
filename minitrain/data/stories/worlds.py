"""The four worlds of the default corpus: village, forest, sea and space."""

from __future__ import annotations

from minitrain.data.stories.domain import Domain, words

VILLAGE = Domain(
    name="village",
    women=words("Mia Lily Rosa Anna Nora Ivy Ella Clara"),
    men=words("Tom Ben Sam Jack Leo Max Otto Hugo"),
    traits=words("kind brave young old tall lazy jolly quiet proud wise"),
    jobs=words("baker cook gardener farmer shepherd hunter fisher smith teacher painter"),
    places=words(
        "at the bakery, in the kitchen, in the garden, in the field, on the hill, in the woods, "
        "by the river, at the forge, at the school, on the bridge"
    ),
    objects=words("loaf pie cup pot rose apple egg seed bell hat nut fish key lamp book brush"),
    sizes=words("big small tiny little huge nice fine good"),
    adjectives=words(
        "warm sweet clean round red fresh yellow white soft green wet silver shiny torn blue pink"
    ),
    weathers=words("sunny rainy windy foggy snowy cold hot fine"),
    times=words("morning day Sunday Monday Friday afternoon evening winter"),
    postures=words("sat stood worked waited sang rested"),
    moves=words("went walked ran raced strolled crept"),
    spots=words("under a stone, in the grass, behind a door, in a box, near a well, on a wall"),
    gives=words("gave handed passed lent"),
    drops=words("left lost hid forgot"),
    songs=words("sang a song, told a tale, wrote a story, read a poem"),
    moods=words("sad long short silly happy slow"),
    creatures=words("fox bear cat king hen goose mouse queen"),
    feelings=words("happy tired proud hungry sad brave glad shy"),
    rests=words("slept rested dreamed snored"),
    events=(10, 6, 12, 16, 4, 12, 16, 6),
    endings=(0, 64, 112, 144, 256),
    loyalty=192,
    nights=168,
    carrying=216,
    habit=12,
)

FOREST = Domain(
    name="forest",
    women=words("Hazel Fern Willow Daisy Poppy Olive Juniper Maple"),
    men=words("Moss Bramble Reed Basil Ash Rowan Thorn Pip"),
    traits=words("sly shy swift plump old grumpy gentle wise nosy clever"),
    jobs=words("fox badger mole hare squirrel owl robin otter frog beaver"),
    places=words(
        "in the den, in the burrow, under the roots, in the meadow, in the oak, on the branch, "
        "in the nest, by the brook, by the pond, on the dam"
    ),
    objects=words(
        "bone blanket root worm beetle clover leaf acorn nut feather berry twig "
        "shell pebble lily log"
    ),
    sizes=words("tiny small big little fat fine plain nice"),
    adjectives=words(
        "white woolly dark long black lucky golden brown smooth light ripe dry pale round wet mossy"
    ),
    weathers=words("misty mild dewy bright stormy frosty breezy still"),
    times=words("dawn spring summer autumn dusk night noon April"),
    postures=words("slept hid dug played climbed bathed"),
    moves=words("trotted hopped scurried crept dashed padded"),
    spots=words(
        "in the moss, under a fern, behind a log, among the reeds, beside a rock, on a stump"
    ),
    gives=words("gave offered brought showed"),
    drops=words("buried dropped hid left"),
    songs=words("hummed a tune, whispered a tale, made up a rhyme, barked a song"),
    moods=words("quiet merry spooky tender wild brave"),
    creatures=words("bee deer moon bat snail cloud toad star"),
    feelings=words("cosy hungry cold safe merry sleepy bold shy"),
    rests=words("curled up, snuggled, yawned, nodded off"),
    events=(16, 5, 14, 12, 8, 16, 8, 6),
    endings=(0, 48, 96, 144, 256),
    loyalty=208,
    nights=184,
    carrying=192,
    habit=20,
)

SEA = Domain(
    name="sea",
    women=words("Marina Coral Pearl Nell Sally Tess Bonny Grace"),
    men=words("Finn Jonah Silas Ned Barnaby Davy Morgan Gus"),
    traits=words("bold old grim merry tall fierce lucky cruel young wise"),
    jobs=words("captain pilot painter sailor diver cook carpenter fiddler smuggler merchant"),
    places=words(
        "on the bridge, in the cabin, on the deck, in the rigging, on the reef, in the galley, "
        "in the hold, at the tavern, in the cave, at the harbor"
    ),
    objects=words(
        "map compass flag drum rope anchor pearl sponge ladle kettle hammer "
        "barrel fiddle mug coin parrot"
    ),
    sizes=words("big huge small great fine little good cheap"),
    adjectives=words(
        "secret brass striped loud knotted rusty perfect pink wooden hot broken "
        "full squeaky salty stolen golden"
    ),
    weathers=words("stormy calm breezy grey blue moonlit salty wild"),
    times=words("voyage morning midnight Tuesday watch tide week dawn"),
    postures=words("stood whistled prayed swam slept waited"),
    moves=words("sailed rowed swam climbed marched staggered"),
    spots=words("in a net, under the sand, inside a whale, behind a sail, in a bottle, on a rock"),
    gives=words("sold gave threw handed"),
    drops=words("dropped buried left hid"),
    songs=words("sang a shanty, told a yarn, carved a picture, wrote a letter"),
    moods=words("sad funny brave salty long merry"),
    creatures=words("whale shark crab kraken gull king ghost storm"),
    feelings=words("seasick brave homesick rich thirsty free lucky proud"),
    rests=words("snored, drank tea, kept watch, dreamed"),
    events=(8, 8, 12, 20, 6, 14, 14, 4),
    endings=(0, 80, 112, 160, 256),
    loyalty=176,
    nights=144,
    carrying=224,
    habit=6,
)

SPACE = Domain(
    name="space",
    women=words("Vega Luna Nova Stella Lyra Ada Zora Io"),
    men=words("Rex Orion Kip Zed Atlas Milo Cosmo Bolt"),
    traits=words("young brave clever calm chief tired lonely famous quick wise"),
    jobs=words("pilot captain scout miner robot engineer doctor botanist chef chemist"),
    places=words(
        "in the cockpit, on the bridge, on the moon, in the crater, at the dock, "
        "in the engine, in the clinic, in the greenhouse, in the canteen, in the lab"
    ),
    objects=words(
        "helmet chart medal flag rover drill crystal battery wrench wire "
        "scanner bandage fern tomato spoon flask"
    ),
    sizes=words("small new big tiny huge fine plain good"),
    adjectives=words(
        "spare curved precious torn dusty noisy glowing charged bent copper "
        "humming clean leafy juicy plastic hot"
    ),
    weathers=words("quiet starry busy lonely dark starless strange bright"),
    times=words("orbit shift morning launch mission eclipse night Thursday"),
    postures=words("floated worked sat hummed napped waited"),
    moves=words("floated flew drifted walked rolled zoomed"),
    spots=words("in a locker, behind a panel, under a seat, near a hatch, in a pipe, on a shelf"),
    gives=words("gave beamed passed lent"),
    drops=words("left parked stored forgot"),
    songs=words("recorded a song, sent a message, told a story, read a report"),
    moods=words("short coded sad funny weird lovely"),
    creatures=words("comet planet robot star martian dog moon queen"),
    feelings=words("dizzy calm homesick curious brave tired proud glad"),
    rests=words("slept, gazed out, powered down, drifted off"),
    events=(14, 7, 10, 10, 6, 12, 16, 8),
    endings=(0, 64, 96, 144, 256),
    loyalty=184,
    nights=160,
    carrying=200,
    habit=10,
)

WORLDS = (VILLAGE, FOREST, SEA, SPACE)
