"""What each regular expression of the API's fields and parameters asks for, in words and with an example: an expression alone
tells most people nothing."""

from typing import Final

from contract.integrations import PATH_PART

PATTERN_WORDS: Final = {
    r"^20[0-9]{2}-(0[1-9]|1[0-2])$": "must be a month, such as 2026-11",
    r"^[^=\x00]{1,128}=[^\x00]{0,512}$": (
        "must be a label's name and value with = between them, such as team=search; at most 128 and 512 characters"
    ),
    r"^[\x21-\x7e]+$": "must be printable ASCII without spaces, such as order-4711",
    r"^[\x21-\x2e\x30-\x7e]+$": "must be printable ASCII without spaces and slashes, such as AKIA0123456789",
    r"^[!-~]*$": "must be printable ASCII without spaces, such as 0123456789abcdef",
    r"^[!-~]([ -~]{0,4094}[!-~])?$": (
        "must be printable ASCII, at most 4096 characters and no space at its ends, such as Bearer abc123"
    ),
    r"^[^\x00]*$": "must be a text without NUL characters, such as small",
    r"^[^\x00-\x1f]*$": "must be one line without control characters, such as night runs",
    r"^[^\x00-\x1f:]*$": "must be one line without colons and control characters, such as support-bot",
    r"^[^:]*$": "must be a text without colons, such as ada",
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*$": (
        "must begin with a letter or digit and hold letters, digits and . _ / - alone, such as main or team/small-v1.0"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$": (
        "must be organisation/name, such as acme/support-bot: letters, digits and . _ - alone, each part beginning with a "
        "letter or digit"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": (
        "must begin with a letter or digit and hold letters, digits and . _ - alone, at most 64, such as mlflow-1"
    ),
    r"^[A-Za-z0-9._-]+$": "must hold letters, digits and . _ - alone, such as train",
    r"^[a-z0-9-]+$": "must hold small letters, digits and - alone, such as eu-central-1",
    r"^https?://": "must begin with https:// or http://, such as https://example.com/grade",
    r"^https?://[^\s?#@]+$": (
        "must begin with https:// or http:// and hold no white space and none of ? # @, such as https://s3.example.com"
    ),
    r"^[0-9a-f]{64}$": "must be a SHA-256 as 64 hexadecimal digits in small letters, such as sha256sum prints",
    r"^[0-9a-fA-F]{32}$": "must be an MD5 as 32 hexadecimal digits, such as md5sum prints",
    r"^[A-Za-z0-9]([A-Za-z0-9 _.:/-]{0,38}[A-Za-z0-9_.:/-])?$": (
        "must begin with a letter or digit, hold letters, digits, spaces and _ . : / - alone, at most 40, and end with no "
        "space, such as exact answer"
    ),
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$": (
        "must be a header's name: letters, digits and ! # $ % & ' * + . ^ _ ` | ~ - alone, at most 128, such as X-Api-Key"
    ),
    r"^[A-Za-z0-9_][A-Za-z0-9_.\-: ]{0,127}$": (
        "must begin with a letter, digit or _ and hold letters, digits, spaces and _ . - : alone, at most 128, such as team"
    ),
    r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}|[A-Za-z0-9._-]{0,61}\*)$": (
        "must be a node's name, such as gpu-1, or the beginning of names, such as gpu-*: letters, digits and . _ - alone, at "
        "most 63"
    ),
    PATH_PART: "must hold no control character and none of / \\ # ? % :, and more than dots and spaces, such as my-project",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": (
        "must be a file's name of letters, digits and _ . - that begins with none of . and -, such as adapter_config.json"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$|^additional_chat_templates/[A-Za-z0-9][A-Za-z0-9._-]{0,100}\.jinja$": (
        "must be a file's name, such as config.json, or one such as additional_chat_templates/tools.jinja"
    ),
}
