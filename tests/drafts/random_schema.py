"""Random schemas: tables with keys of one or two columns, columns of many types and names, references and links."""

from __future__ import annotations

from random import Random

_KEY_TYPES = ("int", "bigint", "uuid", "text", "date", "timestamptz")
_TYPES = (
    "int", "bigint", "smallint", "numeric(8,2)", "numeric", "real", "double precision", "text", "varchar(40)",
    "char(3)", "bool", "date", "timestamp", "timestamptz", "jsonb", "json", "uuid", "text[]", "int[]", "daterange",
    "bytea", "mood",
)  # fmt: skip
_NAMES = (
    "name", "title", "code", "status", "position", "deleted_at", "is_deleted", "published_at", "created_at", "locale",
    "email", "settings", "updatedAt", "odd.name", "Größe", "_hidden", "a b", "lat", "lon", "order", "kind", "note_1",
)  # fmt: skip


def generated(random: Random) -> tuple[str, list[str]]:
    """Return the statements that make a schema, and arguments of `init` for it."""
    statements = ["CREATE TYPE mood AS ENUM ('ok', 'so: so', 'published')", 'CREATE SCHEMA "Other one"']
    keys: list[tuple[str, str, list[tuple[str, str]]]] = []
    referring: dict[str, list[str]] = {}
    for number in range(random.randint(3, 6)):
        name = f"t{number}"
        table = f'"Other one".{name}' if random.random() < 0.2 else f"public.{name}"
        columns = [(f"k{number}", random.choice(_KEY_TYPES)) for number in range(random.choice((1, 1, 2)))]
        lines = [f'"{column}" {type_} NOT NULL' for column, type_ in columns]
        lines += [f'"{column}" {_type_of(random, column)}' for column in random.sample(_NAMES, random.randint(2, 8))]
        for position in range(random.randint(0, 2) if keys else 0):
            to, _, referenced = random.choice(keys)
            referencing = [f"ref{position}_{column}" for column, _ in referenced]
            lines += [f"{column} {type_}" for column, (_, type_) in zip(referencing, referenced, strict=True)]
            lines.append(f"FOREIGN KEY ({', '.join(referencing)}) REFERENCES {to}")
            referring.setdefault(to, []).append(name)
        lines.append(f"PRIMARY KEY ({', '.join(column for column, _ in columns)})")
        statements.append(f"CREATE TABLE {table} ({', '.join(lines)})")
        keys.append((table, name, columns))
    for number in range(random.randint(0, 2)):
        (one, _, first), (two, _, second) = random.choice(keys), random.choice(keys)
        sides = (
            [(f"a_{column}", type_) for column, type_ in first],
            [(f"b_{column}", type_) for column, type_ in second],
        )
        lines = [f"{column} {type_} NOT NULL" for side in sides for column, type_ in side]
        lines += [
            f"FOREIGN KEY ({', '.join(column for column, _ in side)}) REFERENCES {to}"
            for side, to in zip(sides, (one, two), strict=True)
        ]
        statements.append(f"CREATE TABLE link{number} ({', '.join(lines)})")
        referring.setdefault(one, []).append(f"link{number}")
    root, _, _ = random.choice(keys)
    asked = random.sample(sorted({*referring.get(root, [])}), min(2, len({*referring.get(root, [])})))
    return ";\n".join(statements), ["--table", root, *(word for name in asked for word in ("--with", name))]


def _type_of(random: Random, name: str) -> str:
    if name.endswith("_at") or name == "updatedAt":
        return random.choice(("timestamptz", "timestamp", "date"))
    return "bool" if name == "is_deleted" else random.choice(_TYPES)
