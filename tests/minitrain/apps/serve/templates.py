"""Chat templates in the formats of well-known models, each with what the others do not use."""

ALTERNATING = """{%- if messages[0].role == "system" -%}
{%- set system, turns = messages[0].content, messages[1:] -%}
{%- else -%}{%- set system, turns = none, messages -%}{%- endif -%}
{%- for turn in turns -%}
{%- if (turn.role == "user") != (loop.index0 is even) -%}
{{- raise_exception("turns of user and assistant must alternate") -}}{%- endif -%}
{%- if turn.role == "user" -%}
{{- bos_token ~ "[INST] " -}}
{%- if loop.first and system -%}{{- "<<SYS>>\\n" ~ system ~ "\\n<</SYS>>\\n\\n" -}}{%- endif -%}
{{- turn.content.strip() ~ " [/INST]" -}}
{%- else -%}{{- " " ~ turn.content.strip() ~ " " ~ eos_token -}}{%- endif -%}
{%- endfor -%}"""

CHATML = """{% for turn in messages %}{{ "<|im_start|>" + turn.role + "\n" + turn.content -}}
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HEADERS_MARKED = """{{- bos_token }}{% for turn in messages %}
{{- "<|header|>" ~ turn.role ~ "<|end|>\n\n" }}
{%- if turn.role == "assistant" %}{% generation %}{{ turn.content | trim }}<|eot|>{% endgeneration %}
{%- else %}{{ turn.content | trim }}<|eot|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|header|>assistant<|end|>

{% endif %}"""

CHATML_MARKED = """{% for turn in messages %}<|im_start|>{{ turn.role }}
{% if turn.role == "assistant" %}{% generation %}{{ turn.content | trim }}<|im_end|>{% endgeneration %}
{% else %}{{ turn.content }}<|im_end|>{% endif %}

{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TOOLS = """{%- macro called(call) %}{"name": "{{ call.function.name }}", "parameters":
{{- call.function.arguments | tojson }}}{% endmacro -%}
{%- if tools is not none %}You may call:
{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{% endif -%}
{%- for document in documents or [] %}{{ loop.index }}: {{ document.title ~ " " ~ document.text }}
{% endfor -%}
Today: {{ strftime_now("%Y") }}
{% for turn in messages %}{% set ns = namespace(text="") -%}
{%- if turn.content is string %}{% set ns.text = turn.content %}
{%- elif turn.content is iterable -%}
{%- for part in turn.content %}{% set ns.text = ns.text ~ part.text %}{% endfor %}{% endif -%}
<{{ turn.role }}>{{ ns.text }}
{%- for call in turn.tool_calls or [] %}{{ called(call) }}{% endfor %}{{ eos_token }}
{% endfor %}{{ "<assistant>" if add_generation_prompt }}"""

THINKING = """{%- set ns = namespace(last=-1) -%}
{%- for turn in messages %}{% if turn.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor -%}
{%- for turn in messages -%}
{{- "<" ~ turn.role ~ ">" -}}
{%- set thought = turn.reasoning_content or turn.reasoning or turn.thinking -%}
{%- if thought and loop.index0 > ns.last %}<think>{{ thought }}</think>{% endif -%}
{{- turn.content if turn.content is string else turn.content | tojson -}}
{{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif -%}
{%- endif -%}"""

TEMPLATES = {
    "alternating": ALTERNATING,
    "chatml": CHATML,
    "chatml_marked": CHATML_MARKED,
    "headers_marked": HEADERS_MARKED,
    "thinking": THINKING,
    "tools": TOOLS,
}
