// Chat templates: a subset of Jinja2, rendered as transformers renders it (trim_blocks and lstrip_blocks are on).
//
// Statements: for/else over lists, objects and strings, with loop.index, index0, revindex, revindex0, first, last and length; if/elif/else;
// set, also of a namespace's attribute; break and continue. Expressions: strings, integers, floats, true, false, none, lists, objects;
// attributes, items and slices; or, and, not, ==, !=, <, <=, >, >=, in, not in, ~, +, -, *, /, //, %; `a if c else b`; `is defined`,
// undefined, none, string, boolean, integer, float, number, mapping, sequence, iterable, true, false. Filters: trim, tojson, length, count,
// upper, lower, default, d, join, first, last, list, string, int, replace, items. Functions: raise_exception, range, namespace. Methods:
// strip, lstrip, rstrip, startswith, endswith, upper, lower, split, replace, items, keys, values, get. Macros, includes, imports and other
// tags are refused when the file is read.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "based/core/error.h"
#include "based/core/json.h"

namespace based {

struct TemplateLimits {
  int depth = 64;                             // nested statements, expressions and values
  int64_t steps = 1'000'000;                  // evaluated nodes, elements and copied blocks of 64 bytes
  int64_t output_bytes = int64_t{16} << 20U;  // bytes of the rendered text; also of any string made on the way
};

// The template called raise_exception, or the messages and the template do not fit: the request's fault, not the template file's.
class TemplateRenderError : public Error {
 public:
  using Error::Error;
};

namespace chat_template {
struct Program;
}

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // Reads a template file of at most 1 MiB. Throws Error as "<path>:<line>:<column>: <reason>".
  static ChatTemplate load(const std::string& path);
  // The same for a text; messages name it `name`.
  static ChatTemplate parse(std::string_view source, std::string name);

  // The prompt of a chat. `messages` is the list of a request; `extras` is an object with further variables, such as bos_token, eos_token
  // and add_generation_prompt. Throws TemplateRenderError as "<path>:<line>:<column>: <reason>", also beyond the limits.
  std::string render(const Json& messages, const Json& extras, const TemplateLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const chat_template::Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const chat_template::Program> program_;
};

}  // namespace based
