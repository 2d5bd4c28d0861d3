"""A team keeps what `init` drafts of its schema: ten schemas, and generated ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

from tests.drafts import random_schema, wanted
from tests.drafts.rows import Rows
from tests.faults.harness import following
from tests.support.world import World

NAMES = sorted(file.stem for file in wanted.SCHEMAS.glob("*.yaml"))
MANY = "SYNCER_TEST_SCHEMAS"
"""How many generated schemas are tried, if it is set."""
STAYING_MIN, ADDED_MAX, SQL_LINES_MAX = 0.8, 10, 120
SEARCHABLE = ("keyword", "boolean", "byte", "short", "integer", "long", "double", "float", "date", "text")


@pytest.fixture
def bare(empty_world: World) -> World:
    """A world without a document."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.uses_kafka = False
    return empty_world


def drafted(world: World, name: str, *arguments: str) -> None:
    """`init` drafts a document, `plan` accepts it, and it is put active."""
    world.prints("init", *arguments, "--name", name)
    folder = world.config / "documents" / name
    (folder / "document.yaml").write_text(f"index: {world.alias_of(name)}\n")
    world.documents = (name,)
    world.prints("plan", "--json")
    world.migrate()
    world.apply()


def followed(world: World, name: str, rows: Rows) -> None:
    """Random writers go on; no document becomes a dead letter, and all equal their SELECT."""
    with following(world) as follower:
        rows.write(15)
        follower.handle()
        world.refresh(follower.index)
    assert world.sql("SELECT document, id, error FROM syncer.dead_letter") == []
    expected, indexed = world.expected(name), world.held(name)
    assert expected.keys() == indexed.keys()
    for id_, document in expected.items():
        # The oracle's session writes intervals in Postgres' own style.
        assert [key for key, value in document.items() if value != indexed[id_][key] and key != "duration"] == []


def leaves(properties: dict[str, Any], path: str = "", nested: str = "") -> Iterator[tuple[str, str, str]]:
    """The fields of a mapping that a term query finds: path, type, and the nested object around it."""
    for name, mapping in properties.items():
        path_of_field, kind = f"{path}{name}", mapping.get("type", "object")
        if "properties" in mapping:
            yield from leaves(mapping["properties"], f"{path_of_field}.", path_of_field if kind == "nested" else nested)
        elif kind == "flattened" or kind in SEARCHABLE:
            yield path_of_field, kind, nested


def values(document: Any, path: list[str]) -> Iterator[Any]:
    """The values at a path, out of arrays."""
    if isinstance(document, list):
        for element in document:
            yield from values(element, path)
    elif not path:
        yield document
    elif isinstance(document, dict):
        yield from values(document.get(path[0]), path[1:])


def found_by_term(world: World, name: str) -> int:
    """Each leaf finds a document by a value of it; how many were tried."""
    mapping = json.loads((world.config / "documents" / name / "index.json").read_text())["mappings"]["properties"]
    documents, tried = world.held(name), 0
    with world.elasticsearch() as client:
        for path, kind, nested in leaves(mapping):
            for id_, document in documents.items():
                shown = [value for value in values(document, path.split(".")) if value not in (None, "", {})]
                if not shown:
                    continue
                value, field = shown[0], f"{path}.keyword" if kind == "text" else path
                if kind == "flattened":
                    inner = [(key, scalar) for key, scalar in value.items() if isinstance(scalar, str | int)]
                    if not inner:
                        continue
                    field, value = f"{path}.{inner[0][0]}", inner[0][1]
                if len(str(value)) > 8191:
                    continue
                term: dict[str, Any] = {"term": {field: value}}
                term = {"nested": {"path": nested, "query": term}} if nested else term
                hits = client.search(index=world.alias_of(name), query=term, size=1000)["hits"]["hits"]
                assert id_ in {hit["_id"] for hit in hits}, (field, str(value)[:100])
                tried += 1
                break
    return tried


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_what_a_team_wants(bare: World, name: str) -> None:
    """At least 80 % of its lines stay and at most ten are added; it is accepted, followed, and searched."""
    asked = wanted.read(name)
    bare.sql(asked.schema)
    with closing(Rows(bare.dsn, Random(name))) as rows:
        rows.write(20)
        drafted(bare, name, *asked.init)
        followed(bare, name, rows)
    folder = bare.config / "documents" / name
    figures = wanted.compare(asked, folder)
    assert figures.staying >= STAYING_MIN * figures.drafted, figures
    assert figures.added <= ADDED_MAX, figures
    assert len((folder / "select.sql").read_text().splitlines()) <= SQL_LINES_MAX
    assert found_by_term(bare, name) >= len(asked.mapping) // 2
    assert "Nothing to add" in bare.syncer("init", "--from-select", str(folder / "select.sql")).stdout


@pytest.mark.parametrize("seed", range(int(os.environ.get(MANY, "2"))))
def test_a_draft_of_a_generated_schema_is_followed(bare: World, seed: int) -> None:
    """Any tables, keys, types and references: the draft is accepted, and equals its SELECT after writers."""
    schema, arguments = random_schema.generated(Random(seed))
    bare.sql(schema)
    with closing(Rows(bare.dsn, Random(seed))) as rows:
        rows.write(10)
        drafted(bare, "generated", *arguments)
        followed(bare, "generated", rows)


REAL = """
CREATE TABLE countries (code text PRIMARY KEY, name text); CREATE TABLE tags (id int PRIMARY KEY, label text);
CREATE TABLE settings (id int PRIMARY KEY, a int, b int, c int, d int, e int, f int, g int, h int, i int);
CREATE TABLE users (
    id int PRIMARY KEY, pass_crypt text, twofa_key text, "twoFactorBackupCodes" text, home_lat float, has_2fa bool,
    bypass text, session_data jsonb,
    country_code text REFERENCES countries, setting_id int REFERENCES settings, latitude int, longitude int,
    nick text
);
CREATE TABLE preferences (user_id int REFERENCES users, k text, v text, PRIMARY KEY (user_id, k));
CREATE TABLE user_posts (id int PRIMARY KEY, user_id int REFERENCES users, title text);
CREATE TABLE follows (user_id int REFERENCES users, post_id int REFERENCES user_posts, PRIMARY KEY (user_id, post_id));
CREATE TABLE tags_users (
    tag_id int REFERENCES tags, user_id int REFERENCES users, updated_at date, PRIMARY KEY (tag_id, user_id)
);
CREATE TABLE teams (id int PRIMARY KEY, name text);
CREATE TABLE members (user_id int REFERENCES users, team_id int REFERENCES teams, role text, UNIQUE (user_id, team_id));
"""


def test_what_real_schemas_taught(bare: World) -> None:
    """Secrets; keys with values; rows without a name; what refers before what is behind a link; links with columns."""
    bare.sql(REAL)
    with closing(Rows(bare.dsn, Random(1))) as rows:
        rows.write(10)
        named = ("preferences", "posts", "tags", "teams")  # as the fields are named
        drafted(bare, "users", "--table", "users", *(word for name in named for word in ("--with", name)))
        followed(bare, "users", rows)
    fields = json.loads((bare.config / "documents" / "users" / "index.json").read_text())["mappings"]["properties"]
    assert [*fields] == [
        *(
            "has_2fa",
            "bypass",
            "setting_id",
            "latitude",
            "longitude",
            "nick",
            "country",
            "preferences",
            "posts",
            "tags",
        ),
        "members",
    ]
    assert (fields["preferences"]["type"], *fields["tags"]["properties"]) == ("flattened", "id", "label")
    assert fields["members"]["properties"].keys() == {"role", "team"}


@pytest.mark.parametrize(("type_", "field"), [("hstore", "flattened"), ("citext", "text"), ("ltree", "keyword")])
def test_the_types_of_an_extension(bare: World, type_: str, field: str) -> None:
    """As a column, in an array, and in a row that refers."""
    if not bare.sql("SELECT name FROM pg_available_extensions WHERE name = %s", type_):
        pytest.skip(f"this Postgres has no {type_}")
    bare.sql(f"CREATE EXTENSION {type_}; CREATE TABLE one (id int PRIMARY KEY, v {type_}, many {type_}[])")
    bare.sql(f"CREATE TABLE two (id int PRIMARY KEY, one_id int REFERENCES one, v {type_})")
    with closing(Rows(bare.dsn, Random(1))) as rows:
        rows.write(5)
        drafted(bare, "one", "--table", "one", "--with", "two")
        followed(bare, "one", rows)
    fields = json.loads((bare.config / "documents" / "one" / "index.json").read_text())["mappings"]["properties"]
    assert (fields["v"]["type"], fields["twos"]["properties"]["v"]["type"]) == (field, field)


APPLICATIONS = """
CREATE TABLE workspaces (id int PRIMARY KEY, name text, hmac_key text, signing_key text, slug text, plan text);
CREATE TABLE languages (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE genres (id int PRIMARY KEY, genre text, a int, b int, c int, d int, e int, f int, g int, h int);
CREATE TABLE books (
    id int PRIMARY KEY, workspace_id int REFERENCES workspaces, genre_id int REFERENCES genres, version text,
    user_agent text, prompt_tokens int, tax_name text, share_key text, updater_id int, credentials jsonb
);
CREATE TABLE api_keys (
    id int PRIMARY KEY, book_id int REFERENCES books, key text, "hashedKey" text, name text, version int, pin int
);
CREATE TABLE addresses (
    id int PRIMARY KEY, book_id int UNIQUE REFERENCES books, workspace_id int REFERENCES workspaces, tax_id uuid,
    city text
);
CREATE TABLE book_languages (
    book_id int REFERENCES books, language_id int REFERENCES languages, main bool, PRIMARY KEY (book_id, language_id)
);
CREATE TABLE book_metadata (id int PRIMARY KEY, book_id int REFERENCES books, last_updated date, value text);
"""


def test_what_applications_taught(bare: World) -> None:
    """Keys and hashes are secrets; counts, rates and versions in words are none; a tenant is shown once."""
    bare.sql(APPLICATIONS)
    with closing(Rows(bare.dsn, Random(1))) as rows:
        rows.write(10)
        named = ("api_keys", "addresses", "book_languages", "book_metadata")
        drafted(bare, "books", "--table", "books", *(word for name in named for word in ("--with", name)))
        followed(bare, "books", rows)
    mapping = json.loads((bare.config / "documents" / "books" / "index.json").read_text())["mappings"]["properties"]
    assert {name: [*field.get("properties", ())] for name, field in mapping.items()} == {
        **{name: [] for name in ("version", "prompt_tokens", "tax_name")},
        "workspace": ["id", "name", "slug"],
        "genre": ["id", "genre"],
        "api_keys": ["id", "name"],
        "address": ["id", "tax_id", "city"],
        "languages": ["main", "language"],
        "metadata": ["id", "value"],
    }
    assert mapping["languages"]["properties"]["language"]["properties"].keys() == {"id", "code"}


WITHOUT_FOREIGN_KEYS = """
CREATE TABLE vets (id bigint PRIMARY KEY, firstname text, geo_lat float, geo_lon float);
CREATE TABLE things (id int PRIMARY KEY, name text);
CREATE TABLE pets (
    id int PRIMARY KEY, pet_id int, "vetId" int, parent_id int, thing_id int, thing_type text, species_id int,
    vets_id text, name text, vetid int[], seenat bigint, timefed int, weight_at int, deleteat bigint NOT NULL
);
CREATE TABLE pet_chips (pet_id int PRIMARY KEY, mimetype text, row_guid uuid);
CREATE TABLE visits (id int PRIMARY KEY, petid bigint, vetid bigint REFERENCES vets, note text, removed smallint);
CREATE TABLE pets_things (pet_id int NOT NULL, thing_id int NOT NULL);
CREATE TABLE pet_species (id int PRIMARY KEY, name text);
CREATE TABLE zoo_cage (id bigint PRIMARY KEY, name text); CREATE TABLE zoo_keys (id int PRIMARY KEY, cageid bigint);
CREATE TABLE "Other" (id int PRIMARY KEY, pet_id int);
CREATE SCHEMA elsewhere CREATE TABLE species (id int PRIMARY KEY, name text);
INSERT INTO pets SELECT g, 5, 1, g - 1, 1, 'thing', 1, 'x', 'n', '{1}', 1700000000000 + g, 1700000000, 20, g % 3
FROM generate_series(0, 9) AS g;
INSERT INTO vets VALUES (1, 'Ada', 48.1, 11.5);
INSERT INTO visits VALUES (1, 3, 1, 'well', 0), (2, 3, 1, 'gone', 1), (3, 3, 1, 'new', NULL);
"""


def test_a_schema_without_foreign_keys(bare: World) -> None:
    """Names tell what refers to what, in one schema and of one type; numbers tell deletions and instants."""
    bare.sql(WITHOUT_FOREIGN_KEYS)
    named = [word for name in ("pet_chips", "visits", "things") for word in ("--with", name)]
    prints = bare.prints("init", "--table", "pets", *named, "--name", "other")
    shutil.rmtree(bare.config / "documents" / "other")
    assert (
        "joined by name, without a foreign key: pets.vetId, pets.parent_id, pets.species_id, pet_chips.pet_id, "
        "visits.petid, pets_things.pet_id, pets_things.thing_id\n"
    ) in prints
    assert "deleted rows and drafts are left out by: visits: coalesce(removed, 0) = 0, pets: deleteat = 0\n" in prints
    assert "thing_type, thing_id: may refer to rows of several tables" in prints
    drafted(bare, "pets", "--table", "pets", *named)
    bare.prints("init", "--table", "vets")
    location = json.loads((bare.config / "documents/vets/index.json").read_text())["mappings"]["properties"]["location"]
    assert location["type"] == "geo_point"
    bare.prints("init", "--table", "zoo_keys")
    assert "WHERE z_2.id = z.cageid\n    ) AS cage\n" in (bare.config / "documents/zoo_keys/select.sql").read_text()
    for name in ("vets", "zoo_keys"):
        shutil.rmtree(bare.config / "documents" / name)
    assert {id_: [visit["note"] for visit in pet["visits"]] for id_, pet in bare.held("pets").items()} == {
        "0": [], "3": ["well", "new"], "6": [], "9": []
    }  # fmt: skip
    with closing(Rows(bare.dsn, Random(1))) as rows:
        followed(bare, "pets", rows)
    assert any(pet["vet"] and pet["parent"] and pet["visits"] for pet in bare.held("pets").values())
    fields = json.loads((bare.config / "documents" / "pets" / "index.json").read_text())["mappings"]["properties"]
    assert [*fields] == [
        *("pet_id", "thing_id", "thing_type", "vets_id", "name", "vetid", "seenat", "timefed", "weight_at"),
        *("vet", "parent", "species", "chip", "visits", "things"),
    ]
    assert fields["vet"]["properties"].keys() == {"id", "firstname"}
    assert fields["chip"] == {"properties": {"mimetype": wanted.KEYWORD}}
    assert [fields[name].get("format") for name in ("seenat", "timefed", "weight_at")] == [
        "strict_date_optional_time||epoch_millis",
        "strict_date_optional_time||epoch_second",
        None,
    ]
    with bare.elasticsearch() as client:
        query = {"range": {"seenat": {"gte": "2023-11-14", "lt": "2023-11-15"}}}
        assert "3" in {hit["_id"] for hit in client.search(index=bare.alias_of("pets"), query=query)["hits"]["hits"]}
