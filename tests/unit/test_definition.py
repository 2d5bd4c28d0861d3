"""A document's folder is read whole and as it stands, or refused with the file that is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from syncer.base.errors import DefinitionError
from syncer.documents import definition

GOOD = {
    "document.yaml": "index: blog\n",
    "select.sql": "SELECT p.id AS _id FROM posts AS p\n",
    "index.json": '{"settings": {"number_of_shards": 1}, "mappings": {"dynamic": "strict"}}',
}
NOTHING: Mapping[str, str | None] = {}


def write(config: Path, name: str = "blogpost", files: Mapping[str, str | None] = NOTHING) -> Path:
    """A document's folder with these files, the good ones where none is given; None leaves a file out."""
    folder = config / "documents" / name
    for file, text in {**GOOD, **files}.items():
        if text is not None:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
    return folder


def load_all(config: Path, *, may_be_none: bool = False) -> list[definition.Definition]:
    """Every definition of a config folder, read as `syncer plan` reads them."""
    definitions = [definition.load(folder) for folder in definition.folders(config, may_be_none=may_be_none)]
    for loaded in definitions:
        definition.require_own_index(loaded, definitions)
    return definitions


def test_a_folder_is_a_definition(tmp_path: Path) -> None:
    """Everything that the folder says is in the definition, also as an editor on Windows saves it; a README is not."""
    folder = write(tmp_path, files={"affects/users.sql": "SELECT c.id AS _id FROM %(rows)s AS c;\n", "README.md": "x"})
    for file in (*GOOD, "affects/users.sql"):
        (folder / file).write_text((folder / file).read_text("utf-8"), encoding="utf-8-sig")
    (folder.parent / "README.md").write_text("which")
    assert load_all(tmp_path) == [
        definition.Definition(
            name="blogpost",
            index="blog",
            select="SELECT p.id AS _id FROM posts AS p",
            index_body={"settings": {"number_of_shards": 1}, "mappings": {"dynamic": "strict"}},
            affects={"users": "SELECT c.id AS _id FROM %(rows)s AS c"},
            folder=folder,
        )
    ]


@pytest.mark.parametrize("end", ["", ";", " ; ", ";\n\n", "\n;\n"])
def test_a_closing_semicolon_is_dropped(tmp_path: Path, end: str) -> None:
    """Only white space and one semicolon at the end are taken away."""
    select = "SELECT ' ;☃%s\t' AS _id"
    assert definition.load(write(tmp_path, files={"select.sql": select + end})).select == select


ALIASES = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 21))
SETTINGS = '{{"settings": {}}}'
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
    **{
        f"deep_json_{number}": ({"index.json": text}, ("index.json", "100 levels"))
        for number, text in enumerate(
            ('{"a":' * 100_000, '{"settings":' * 300 + "1" + "}" * 300, "[" * 102 + "]" * 102)
        )
    },
    **{
        f"deep_yaml_{number}": ({"document.yaml": text}, ("document.yaml", words))
        for number, (text, words) in enumerate(
            (
                ("index: " + "[" * 5000, "nested too deeply"),
                (f"x0: &x0 [a]\n{ALIASES}index: *x20", "x0, x1"),
                (f"index: [{', '.join(['a'] * 10**5)}]", "a list is not a name"),
                ("index: &a {a: &b [1, 2], b: *b}", "a dict is not a name"),
            )
        )
    },
    "aliases": ({"index.json": '{"aliases": {}}'}, ("index.json", "settings and mappings", "Aliases")),
    "mappings_a_word": ({"index.json": '{"mappings": "dynamic"}'}, ("index.json", "mappings")),
    "multi_field_a_word": (
        {"index.json": '{"mappings": {"properties": {"title": {"type": "text", "fields": {"k": "keyword"}}}}}'},
        ("index.json", "mappings.properties.title.fields.k must be an object"),
    ),
    "affects_without_rows": ({"affects/users.sql": "SELECT 1"}, ("users.sql", "%(rows)s")),
    "affects_misspelled": ({"affect/users.sql": "SELECT 1"}, ("affect is no folder that a document has",)),
    "deletes_forgotten": (
        {"index.json": SETTINGS.format('{"gc_deletes": "1s"}')},
        ("index.gc_deletes of the index is 1s",),
    ),
    **{
        f"shard_by_id_{number}": ({"index.json": SETTINGS.format(settings)}, ("routing_partition_size",))
        for number, settings in enumerate(
            ('{"routing_partition_size": 2}', '{"index": {"routing_partition_size": "3"}}')
        )
    },
    **{
        f"pipeline_{number}": ({"index.json": SETTINGS.format(settings)}, ("_pipeline", "select.sql"))
        for number, settings in enumerate(('{"index": {"final_pipeline": "p"}}', '{"index.default_pipeline": "p"}'))
    },
    **{
        f"index_{name[:9]}": ({"document.yaml": f'index: "{name}"'}, ("is not a name for an index",))
        for name in ("a" * 201, "Blog", "_blog", "-blog", ".blog", "blog post", "blog/post", "blog*", "a,b", "a:b", "ö")
    },
}


@pytest.mark.parametrize(("files", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_named(tmp_path: Path, files: dict[str, str | None], says: tuple[str, ...]) -> None:
    """An error names the file at fault, and says what to do."""
    with pytest.raises(DefinitionError) as refused:
        definition.load(write(tmp_path, files=files))
    for words in says:
        assert words in f"{refused.value.message}\n{refused.value.hint}"
    assert refused.value.hint


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    """A file in another encoding is refused, not misread."""
    folder = write(tmp_path)
    (folder / "select.sql").write_bytes("SELECT 'é' AS _id".encode("latin-1"))
    with pytest.raises(DefinitionError, match=r"select\.sql cannot be read"):
        definition.load(folder)


@pytest.mark.parametrize("name", ["blog post", "_blog", "blög", "a.b", "x" * 64])
def test_a_folder_s_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    """A name that could not stand in a log, a command or a key is refused."""
    with pytest.raises(DefinitionError, match="is not a name for a document"):
        load_all(write(tmp_path, name).parent.parent)


def test_two_documents_share_no_index(tmp_path: Path) -> None:
    """One index is one document's."""
    write(tmp_path, "a")
    write(tmp_path, "b")
    with pytest.raises(DefinitionError, match="Documents a and b share the index blog"):
        load_all(tmp_path)


def test_no_document_at_all(tmp_path: Path) -> None:
    """The folder that was looked in is named, unless the last document is to be removed."""
    for _ in range(2):
        with pytest.raises(DefinitionError, match="There is no document") as refused:
            load_all(tmp_path)
        assert str(tmp_path / "documents") in refused.value.message
        assert "SYNCER_CONFIG" in refused.value.hint
        (tmp_path / "documents").mkdir(exist_ok=True)
    assert load_all(tmp_path, may_be_none=True) == []
