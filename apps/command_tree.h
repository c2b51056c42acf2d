// The program's commands and options as data, from which completion scripts and the man page are made.
#pragma once
#include <string>
#include <vector>

namespace based::apps {

struct OptionEntry {
  std::string name;        // "--model", or "file" for a positional argument
  std::string short_name;  // "-h", or empty
  std::string value;       // the value's type as --help shows it: "TEXT", "INT", "NUMBER", "true|false"; empty for a flag
  std::string initial;     // the default value, if there is one
  std::string help;
  bool positional = false;  // an argument without "--name"
  bool required = false;
  bool repeated = false;             // may be given several times
  bool files = false;                // shells complete file names
  std::vector<std::string> choices;  // values that shells complete; others may be valid, too

  bool takes_value() const { return !value.empty(); }
};

struct CommandEntry {
  std::string name;  // with the names of its parents: "based tokenize train"
  std::string summary;
  bool runs = true;  // false: one of `commands` must follow
  std::vector<OptionEntry> options;
  std::vector<CommandEntry> commands;

  // The last word of the name.
  std::string word() const { return name.substr(name.rfind(' ') + 1); }
};

// Calls body(command) for the command and for all commands below it, parents first.
template <class Body>
void for_each_command(const CommandEntry& command, const Body& body) {
  body(command);
  for (const CommandEntry& nested : command.commands) for_each_command(nested, body);
}

}  // namespace based::apps
