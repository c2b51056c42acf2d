// A subcommand of `based` is one file apps/<name>.cpp that defines a Command, and one line in commands.def.
#pragma once
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "apps/command_line.h"
#include "apps/output.h"
#include "based/core/config.h"
#include "based/core/text.h"

namespace based::apps {

extern const char* const version;  // from the VERSION file

// Thrown by a command that has printed its results but did not succeed: the program exits with this code.
struct Exit {
  int code = 0;
};

struct Command {
  const char* name;
  const char* summary;
  // Adds options to `app` and sets app.callback().
  void (*setup)(CommandLine app);
};

#define BASED_COMMAND(name) extern const Command command_##name;
#include "apps/commands.def"
#undef BASED_COMMAND

// The program's main function.
[[noreturn]] void run_program(int argc, char** argv);

// Prints one line per key of a config file, with its default and help, for --keys.
void print_keys(const std::vector<FieldHelp>& keys);

// The names of the elements or pointees, for CommandLine::offer.
template <class List>
std::vector<std::string> names_of(const List& list) {
  std::vector<std::string> names;
  names.reserve(list.size());
  for (const auto& element : list) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(element)>>)
      names.emplace_back(element->name);
    else
      names.emplace_back(element.name);
  }
  return names;
}

std::string grouped(int64_t count);    // 363,123,456
std::string scientific(double value);  // 1.2e-07

}  // namespace based::apps
