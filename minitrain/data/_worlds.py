"""The four worlds of the default corpus: village, forest, sea and space."""

from __future__ import annotations

from minitrain.data._domains import Domain, words

VILLAGE = Domain(
    name="village",
    women=words("Mia Lily Rosa Anna Nora Ivy Ella Clara"),
    men=words("Tom Ben Sam Jack Leo Max Otto Hugo"),
    traits=words("kind brave young old tall clever lazy jolly quiet proud busy wise"),
    jobs=words("baker cook gardener farmer shepherd hunter fisher smith teacher painter"),
    places=words(
        "at the bakery, in the kitchen, in the garden, in the field, on the hill, in the woods, "
        "by the river, at the forge, at the school, on the bridge"
    ),
    objects=words(
        "loaf pie cup pot rose apple egg seed bell hat stick nut "
        "fish net key lamp book map flute brush"
    ),
    adjectives=words(
        "warm sweet round clean red fresh yellow big white soft "
        "tiny green wet silver shiny thin heavy torn pink blue"
    ),
    weathers=words("sunny rainy windy foggy snowy cold hot fine"),
    times=words("morning day Sunday Monday Friday afternoon evening winter"),
    postures=words("sat stood worked waited sang rested danced ate"),
    moves=words("went walked ran raced strolled crept"),
    spots=words(
        "under a stone, in the grass, behind a door, in a box, near a well, on a wall, "
        "under a tree, in a nest"
    ),
    gives=words("gave handed passed lent"),
    drops=words("left lost hid forgot"),
    songs=words("sang a song, told a tale, wrote a story, read a poem"),
    moods=words("sad long short silly gentle happy slow secret"),
    creatures=words("fox bear cat king hen goose mouse queen wolf horse pig giant"),
    feelings=words("happy tired proud hungry sleepy brave lonely glad shy calm merry sad"),
    rests=words("slept rested dreamed snored"),
    events=(10, 7, 12, 16, 4, 12, 12, 6),
    endings=(0, 64, 112, 144, 256),
    loyalty=168,
    nights=152,
    carrying=192,
    habit=12,
)

FOREST = Domain(
    name="forest",
    women=words("Hazel Fern Willow Daisy Poppy Olive Juniper Maple"),
    men=words("Moss Bramble Reed Basil Ash Rowan Thorn Pip"),
    traits=words("sly shy swift plump old tiny grumpy gentle wise nosy greedy clever"),
    jobs=words("fox badger mole hare squirrel owl robin otter frog beaver"),
    places=words(
        "in the den, in the burrow, under the roots, in the meadow, in the oak, on the branch, "
        "in the nest, by the brook, by the pond, on the dam"
    ),
    objects=words(
        "bone blanket root worm beetle clover carrot leaf acorn nut "
        "feather quill berry twig shell pebble reed lily log raft"
    ),
    adjectives=words(
        "white woolly dark long black lucky crisp golden brown smooth "
        "light grey ripe dry pale round tall wet mossy strong"
    ),
    weathers=words("misty mild dewy bright stormy frosty breezy still"),
    times=words("dawn spring summer autumn dusk night noon April"),
    postures=words("slept hid dug played climbed perched bathed dozed"),
    moves=words("trotted hopped scurried crept dashed padded"),
    spots=words(
        "in the moss, under a fern, behind a log, among the reeds, beside a rock, in the mud, "
        "on a stump, below a bush"
    ),
    gives=words("gave offered brought showed"),
    drops=words("buried dropped hid left"),
    songs=words("hummed a tune, whispered a tale, made up a rhyme, barked a song"),
    moods=words("quiet merry spooky tender wild sleepy brave foolish"),
    creatures=words("bee deer moon bat snail cloud toad hunter moth star snake giant"),
    feelings=words("cosy hungry cold safe merry curious sleepy bold shy grumpy warm lost"),
    rests=words("curled up, snuggled, yawned, nodded off"),
    events=(16, 6, 14, 12, 10, 16, 6, 6),
    endings=(0, 48, 96, 144, 256),
    loyalty=184,
    nights=176,
    carrying=160,
    habit=20,
)

SEA = Domain(
    name="sea",
    women=words("Marina Coral Pearl Nell Sally Tess Bonny Grace"),
    men=words("Finn Jonah Silas Ned Barnaby Davy Morgan Gus"),
    traits=words("bold old grim merry tall fierce lucky cruel young lazy famous wise"),
    jobs=words("captain pilot painter sailor diver cook carpenter fiddler smuggler merchant"),
    places=words(
        "on the bridge, in the cabin, on the deck, in the rigging, on the reef, in the galley, "
        "in the hold, at the tavern, in the cave, at the harbor"
    ),
    objects=words(
        "map compass spyglass flag drum cannonball rope anchor pearl sponge "
        "ladle kettle hammer barrel fiddle mug torch chest coin parrot"
    ),
    adjectives=words(
        "secret brass long striped loud black knotted rusty perfect pink "
        "wooden hot broken full squeaky salty smoky stolen golden green"
    ),
    weathers=words("stormy calm breezy grey blue moonlit salty wild"),
    times=words("voyage morning midnight Tuesday watch tide week dawn"),
    postures=words("stood whistled prayed swam cooked slept danced waited"),
    moves=words("sailed rowed swam climbed marched staggered"),
    spots=words(
        "in a net, under the sand, inside a whale, behind a sail, in a bottle, among the ropes, "
        "on a rock, beneath a plank"
    ),
    gives=words("sold gave threw handed"),
    drops=words("dropped buried left hid"),
    songs=words("sang a shanty, told a yarn, carved a picture, wrote a letter"),
    moods=words("sad funny rude brave salty long merry noisy"),
    creatures=words("whale shark mermaid crab kraken gull king ghost dolphin storm pirate queen"),
    feelings=words("seasick brave homesick rich thirsty free lucky afraid proud bored jolly merry"),
    rests=words("snored, drank tea, kept watch, dreamed"),
    events=(8, 10, 12, 20, 8, 14, 10, 4),
    endings=(0, 80, 112, 160, 256),
    loyalty=144,
    nights=112,
    carrying=208,
    habit=6,
)

SPACE = Domain(
    name="space",
    women=words("Vega Luna Nova Stella Lyra Ada Zora Io"),
    men=words("Rex Orion Kip Zed Atlas Milo Cosmo Bolt"),
    traits=words("young brave clever calm chief tired curious lonely famous quick rusty wise"),
    jobs=words("pilot captain scout miner robot engineer doctor botanist chef chemist"),
    places=words(
        "in the cockpit, on the bridge, on the moon, in the crater, at the dock, "
        "in the engine, in the clinic, in the greenhouse, in the canteen, in the lab"
    ),
    objects=words(
        "helmet chart radio medal flag rover drill crystal battery gear "
        "wrench wire scanner bandage fern tomato spoon soup flask magnet"
    ),
    adjectives=words(
        "spare curved crackling precious torn dusty noisy glowing charged greasy "
        "bent copper humming clean leafy juicy plastic hot fragile strong"
    ),
    weathers=words("quiet starry busy lonely dark starless strange bright"),
    times=words("orbit shift morning launch mission eclipse night Thursday"),
    postures=words("floated worked sat hummed tinkered stared napped waited"),
    moves=words("floated flew drifted walked rolled zoomed"),
    spots=words(
        "in a locker, behind a panel, under a seat, near a hatch, in a pipe, on a shelf, "
        "inside a suit, below a screen"
    ),
    gives=words("gave beamed passed lent"),
    drops=words("left parked stored forgot"),
    songs=words("recorded a song, sent a message, told a story, read a report"),
    moods=words("short coded sad funny weird secret lovely long"),
    creatures=words("comet planet robot star martian dog moon meteor wizard cat sun queen"),
    feelings=words("dizzy calm homesick tiny curious brave tired weightless proud bored glad cold"),
    rests=words("slept, gazed out, powered down, drifted off"),
    events=(14, 8, 10, 10, 8, 12, 12, 8),
    endings=(0, 64, 96, 144, 256),
    loyalty=152,
    nights=144,
    carrying=176,
    habit=10,
)

WORLDS = (VILLAGE, FOREST, SEA, SPACE)
