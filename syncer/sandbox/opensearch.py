"""OpenSearch, from the jars that it is built of.

Its home is made anew at each start, in the folder of the server. A module has a folder of its own there, with its jar
and a descriptor; all other jars are on the class path.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from syncer.sandbox.downloads import LOG4J_VERSION
from syncer.sandbox.servers import ElasticsearchServer

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %marker%m%n
"""
_DESCRIPTOR = """\
name={name}
description={name}
version={version}
opensearch.version={version}
java.version=11
classname={plugin_class}
"""
# Version 2 lets a library do only what the descriptor of its module grants, and here, libraries are in no module.
_POLICY = "grant { permission java.security.AllPermission; };\n"
_PLUGIN_CLASS = re.compile(r"(org/opensearch/.*Plugin)\.class")
# Painless looks for its lists of classes beside the class that reads them, which is in this jar.
_READER_OF_PAINLESS = "opensearch-scripting-painless-spi"


class OpenSearchServer(ElasticsearchServer):
    """OpenSearch with one node, in the place of Elasticsearch."""

    name = "OpenSearch"
    default_version = "3"
    settings_file = "opensearch.yml"
    default_settings = {  # noqa: RUF012 - a ClassVar of the base class
        name: value for name, value in ElasticsearchServer.default_settings.items() if not name.startswith("xpack.")
    }

    @property
    def _working_folder(self) -> Path:
        return self.folder

    @property
    def _home(self) -> Path:
        return self.folder / "home"

    def _prepare(self) -> None:
        self._write_settings()
        self._account.write(self.config_folder / "log4j2.properties", _LOGGING)
        self._account.write(self.config_folder / "java.policy", _POLICY)
        shutil.rmtree(self._home, ignore_errors=True)
        for name in ("bin", "extensions", "lib", "plugins"):
            self._account.own(self._home / name)
        for jar, plugin_class in self._modules().items():
            name, _, version = jar.stem.rpartition("-")
            name = name.removesuffix("-client") if plugin_class else "lang-painless"
            folder = self._home / "modules" / name
            self._account.own(folder)
            shutil.copyfile(jar, folder / jar.name)
            if plugin_class:
                descriptor = _DESCRIPTOR.format(name=name, version=version, plugin_class=plugin_class)
                self._account.write(folder / "plugin-descriptor.properties", descriptor)

    def _jars(self) -> list[Path]:
        return sorted(self._cache.fetched("opensearch", self.version).iterdir())

    def _modules(self) -> dict[Path, str]:
        """Return the jars of modules, each with its class that OpenSearch loads, if it has one."""
        modules = {}
        for jar in self._jars():
            with zipfile.ZipFile(jar) as archive:
                classes = [match[1] for match in map(_PLUGIN_CLASS.fullmatch, archive.namelist()) if match]
            if len(classes) == 1 or jar.name.startswith(_READER_OF_PAINLESS):
                modules[jar] = "".join(classes).replace("/", ".")
        return modules

    def _command(self) -> Sequence[str]:
        modules, libraries = self._modules(), self._cache.fetched("log4j", LOG4J_VERSION).iterdir()
        # By their names: two jars with the same class would be refused.
        class_path = {jar.name: str(jar) for jar in (*libraries, *self._jars()) if jar not in modules}
        options = [*self._options(), f"-Dopensearch.path.home={self._home}"]
        options.append(f"-Dopensearch.path.conf={self.config_folder}")
        if self.version == "2":
            options += ["-Djava.security.manager=allow", "-Dlog4j2.disable.jmx=true"]
            options.append(f"-Djava.security.policy={self.config_folder / 'java.policy'}")
        main_class = "org.opensearch.bootstrap.OpenSearch"
        return [str(self._cache.java()), *options, "-cp", ":".join(class_path.values()), main_class]
