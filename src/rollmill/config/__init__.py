"""Configuration: YAML files, `env.yaml` and the command line become one typed tree, a mistake one clear line."""

from rollmill.config.dump import as_yaml
from rollmill.config.files import find_path, read_verbatim
from rollmill.config.instances import DOMAINS, KINDS, Dataset, Instance, Kind
from rollmill.config.layers import RESERVED, Config, load, masked, masked_text, names_files, options_from, peek
from rollmill.config.typed import convert

__all__ = [
    "DOMAINS",
    "KINDS",
    "RESERVED",
    "Config",
    "Dataset",
    "Instance",
    "Kind",
    "as_yaml",
    "convert",
    "find_path",
    "load",
    "masked",
    "masked_text",
    "names_files",
    "options_from",
    "peek",
    "read_verbatim",
]
