"""A document's folder is read whole and as it stands, or refused with the file that is at fault."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from syncer.base.errors import DefinitionError
from syncer.documents import definition
from syncer.elasticsearch import indices
from tests.support.world import REPOSITORY

GOOD = {
    "document.yaml": "index: blog\n",
    "select.sql": "SELECT p.id AS _id FROM posts AS p\n",
    "index.json": '{"settings": {"number_of_shards": 1}, "mappings": {"dynamic": "strict"}}',
}

NOTHING: Mapping[str, str | None] = {}


def write(config: Path, name: str = "blogpost", files: Mapping[str, str | None] = NOTHING) -> Path:
    """A document's folder with these files, the good ones where none is given; None leaves a file out."""
    folder = config / "documents" / name
    (folder / "affects").mkdir(parents=True)
    for file, text in {**GOOD, **files}.items():
        if text is not None:
            (folder / file).write_text(text, encoding="utf-8")
    return folder


def test_a_folder_is_a_definition(tmp_path: Path) -> None:
    """Everything that the folder says is in the definition."""
    folder = write(tmp_path, files={"affects/users.sql": "SELECT c.id AS _id FROM %(rows)s AS c;\n"})
    assert definition.load(folder) == definition.Definition(
        name="blogpost",
        index="blog",
        select="SELECT p.id AS _id FROM posts AS p",
        index_body={"settings": {"number_of_shards": 1}, "mappings": {"dynamic": "strict"}},
        affects={"users": "SELECT c.id AS _id FROM %(rows)s AS c"},
        folder=folder,
    )


def test_the_examples_are_good() -> None:
    """What the repository ships as examples can be read, and only a recursive query has to say what it affects."""
    found = {one.name: list(one.affects) for one in definition.load_all(REPOSITORY / "config")}
    names = ("blogpost", "discussion", "file", "post", "user")
    assert found == {name: ["directories"] if name == "file" else [] for name in names}


@pytest.mark.parametrize("end", ["", ";", " ; ", ";\n\n", "\n;\n"])
def test_a_closing_semicolon_is_dropped(tmp_path: Path, end: str) -> None:
    """Whether a file ends in a semicolon makes no difference."""
    folder = write(tmp_path, files={"select.sql": f"SELECT 1 AS _id{end}"})
    assert definition.load(folder).select == "SELECT 1 AS _id"


def test_other_files_and_hidden_ones_are_left_alone(tmp_path: Path) -> None:
    """A README beside the documents, or within one, is ignored."""
    folder = write(tmp_path)
    (folder / "README.md").write_text("why")
    (folder.parent / "README.md").write_text("which")
    assert [one.name for one in definition.load_all(tmp_path)] == ["blogpost"]


def test_without_a_folder_there_is_nothing_to_apply(tmp_path: Path) -> None:
    """It is an error, unless the last document is to be removed."""
    with pytest.raises(DefinitionError, match="no document"):
        definition.load_all(tmp_path)
    assert definition.load_all(tmp_path, may_be_none=True) == []


BAD: dict[str, tuple[dict[str, str | None], tuple[str, ...]]] = {
    "no_yaml": ({"document.yaml": None}, ("document.yaml", "missing")),
    "no_index": ({"index.json": None}, ("index.json", "missing")),
    "empty_select": ({"select.sql": "\n"}, ("select.sql", "empty")),
    "not_yaml": ({"document.yaml": "index: [a\nb: c"}, ("document.yaml", "YAML", "line 1")),
    "yaml_is_a_list": ({"document.yaml": "- index"}, ("document.yaml", "index")),
    "index_is_a_number": ({"document.yaml": "index: 5"}, ("document.yaml", "index")),
    "unknown_key": ({"document.yaml": "index: a\nalias: b"}, ("document.yaml", "alias")),
    "not_json": ({"index.json": "{"}, ("index.json", "JSON", "line 1")),
    "json_is_a_list": ({"index.json": "[]"}, ("index.json", "settings and mappings")),
    "aliases": ({"index.json": '{"aliases": {}}'}, ("index.json", "settings and mappings", "Aliases")),
    "mappings_a_word": ({"index.json": '{"mappings": "dynamic"}'}, ("index.json", "mappings")),
    "field_a_word": (
        {"index.json": '{"mappings": {"properties": {"title": "text"}}}'},
        ("index.json", "mappings.properties.title must be an object"),
    ),
    "multi_field_a_word": (
        {"index.json": '{"mappings": {"properties": {"title": {"type": "text", "fields": {"k": "keyword"}}}}}'},
        ("index.json", "mappings.properties.title.fields.k must be an object"),
    ),
    "affects_without_rows": ({"affects/users.sql": "SELECT 1"}, ("users.sql", "%(rows)s")),
}


@pytest.mark.parametrize(("files", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_named(tmp_path: Path, files: dict[str, str | None], says: tuple[str, ...]) -> None:
    """An error names the file at fault, and says what to do."""
    with pytest.raises(DefinitionError) as refused:
        definition.load(write(tmp_path, files=files))
    for words in says:
        assert words in f"{refused.value.message}\n{refused.value.hint}"
    assert refused.value.hint


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    """Files that an editor on Windows has saved are taken."""
    folder = write(tmp_path, files={"affects/users.sql": "SELECT c.id AS _id FROM %(rows)s AS c"})
    before = definition.load(folder)
    for file in (*GOOD, "affects/users.sql"):
        (folder / file).write_text((folder / file).read_text("utf-8"), encoding="utf-8-sig")
    assert definition.load(folder) == before


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    """A file in another encoding is refused, not misread."""
    folder = write(tmp_path)
    (folder / "select.sql").write_bytes("SELECT 'é' AS _id".encode("latin-1"))
    with pytest.raises(DefinitionError, match=r"select\.sql cannot be read"):
        definition.load(folder)


INDEX_NAMES = {
    "blog": True,
    "blog-2026.01_x": True,
    "9lives": True,
    "a" * 200: True,
    "a" * 201: False,
    "Blog": False,
    "_blog": False,
    "-blog": False,
    ".blog": False,
    "blog post": False,
    "blog/post": False,
    "blog*": False,
    "blog,post": False,
    "blog:post": False,
    "blög": False,
    "..": False,
    "": False,
}


@pytest.mark.parametrize(("name", "is_good"), INDEX_NAMES.items(), ids=lambda one: str(one)[:12])
def test_an_index_name_is_one_that_elasticsearch_takes(tmp_path: Path, name: str, *, is_good: bool) -> None:
    """A name that Elasticsearch would refuse is refused before anything is done."""
    folder = write(tmp_path, files={"document.yaml": f'index: "{name}"'})
    if is_good:
        assert definition.load(folder).index == name
    else:
        with pytest.raises(DefinitionError, match=r"index: .* is not a name for an index") as refused:
            definition.load(folder)
        assert "Value error" not in refused.value.message


@pytest.mark.parametrize("name", ["blog post", "_blog", "-blog", "blög", "a.b", "x" * 64])
def test_a_folder_s_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    """A name that could not stand in a log, a command or a key is refused."""
    with pytest.raises(DefinitionError, match="is not a name for a document") as refused:
        definition.load_all(write(tmp_path, name).parent.parent)
    assert "Rename" in refused.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        '{"routing_partition_size": 2}',
        '{"index": {"routing_partition_size": "3"}}',
        '{"index.routing_partition_size": 2}',
    ],
)
def test_the_shard_of_a_document_depends_on_its_routing_alone(tmp_path: Path, settings: str) -> None:
    """However the setting is spelled, an index whose routings lead to several shards is refused."""
    with pytest.raises(DefinitionError, match="routing_partition_size"):
        definition.load(write(tmp_path, files={"index.json": f'{{"settings": {settings}}}'}))


@pytest.mark.parametrize(
    "settings", ['{"default_pipeline": "p"}', '{"index": {"final_pipeline": "p"}}', '{"index.default_pipeline": "p"}']
)
def test_no_pipeline_changes_what_the_select_says(tmp_path: Path, settings: str) -> None:
    """However the setting is spelled, an index with an ingest pipeline is refused."""
    with pytest.raises(DefinitionError, match="_pipeline") as refused:
        definition.load(write(tmp_path, files={"index.json": f'{{"settings": {settings}}}'}))
    assert "select.sql" in refused.value.hint


def test_settings_have_one_name_each(tmp_path: Path) -> None:
    """Nested, dotted or without their prefix, settings are known by their full names."""
    spelled = {"number_of_shards": 1, "index": {"a": {"b": 2}, "c.d": 3}, "index.e": [4], "analysis.f": {"g": True}}
    assert indices.flat_settings(spelled) == {
        "index.number_of_shards": 1,
        "index.a.b": 2,
        "index.c.d": 3,
        "index.e": [4],
        "index.analysis.f.g": True,
    }
    assert definition.load(write(tmp_path, files={"index.json": '{"settings": {"routing_partition_size": 1}}'}))


def test_two_documents_share_no_index(tmp_path: Path) -> None:
    """One index is one document's."""
    write(tmp_path, "a")
    write(tmp_path, "b")
    with pytest.raises(DefinitionError, match="Documents a and b share the index blog"):
        definition.load_all(tmp_path)


@pytest.mark.parametrize("made", ["", "documents", "documents/file"])
def test_no_document_at_all(tmp_path: Path, made: str) -> None:
    """Where there is no document, the folder that was looked in is named."""
    if made.endswith("file"):
        (tmp_path / "documents").mkdir()
        (tmp_path / made).write_text("not a folder")
    elif made:
        (tmp_path / made).mkdir()
    with pytest.raises(DefinitionError, match="There is no document") as refused:
        definition.load_all(tmp_path)
    assert str(tmp_path / "documents") in refused.value.message
    assert "SYNCER_CONFIG" in refused.value.hint


@given(text=st.text(min_size=1, alphabet=st.characters(codec="utf-8", exclude_characters="\r")))
def test_a_select_is_passed_on_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Only white space and one semicolon at its end are taken away; what is inside stays letter by letter."""
    select = f"SELECT '{text}' AS _id"
    folder = write(tmp_path_factory.mktemp("config"), files={"select.sql": f"{select};\n"})
    try:
        assert definition.load(folder).select == select
    finally:
        shutil.rmtree(folder)


def test_a_folder_that_a_document_does_not_have_is_named(tmp_path: Path) -> None:
    """A misspelled affects folder is not passed over."""
    folder = write(tmp_path)
    (folder / "affect").mkdir()
    with pytest.raises(DefinitionError, match="affect is no folder that a document has"):
        definition.load(folder)
