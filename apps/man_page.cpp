#include "apps/man_page.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace based::apps {
namespace man_page_text {

// Decodes one character of UTF-8 at `at` and advances. Help is valid UTF-8, as the sources are.
uint32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t index) { return static_cast<uint32_t>(static_cast<unsigned char>(index < text.size() ? text[index] : 0)); };
  const uint32_t first = byte(at++);
  const size_t more = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  uint32_t character = more == 0 ? first : first & (0x3FU >> more);
  for (size_t i = 0; i < more; ++i) character = character << 6U | (byte(at++) & 0x3FU);
  return character;
}

// Text as roff shows it unchanged: a backslash, a minus sign, quotes and characters beyond ASCII are written as escapes.
std::string roff(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const uint32_t character = next_character(text, at);
    std::array<char, 16> escape{};
    switch (character) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '`': result += "\\(ga"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      case '\n': result += ' '; break;
      case 0x2026: result += "..."; break;
      default:
        if (character < 0x80) {
          result += static_cast<char>(character);
        } else {
          std::snprintf(escape.data(), escape.size(), "\\[u%04X]", character);
          result += escape.data();
        }
    }
  }
  // A line that begins with a dot would be a request.
  return result.starts_with('.') ? "\\&" + result : result;
}

std::string line(const std::string& text) { return roff(text) + "\n"; }
std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

// "[--dtype TEXT]", "file..."
std::string usage_of(const OptionEntry& option) {
  std::string usage = option.positional ? italic(option.name) : bold(option.name);
  if (!option.positional && option.takes_value()) usage += "\\ " + italic(option.value);
  if (option.repeated) usage += "...";
  return option.required ? usage : "[" + usage + "]";
}

std::string synopsis(const CommandEntry& command) {
  std::string text = bold(command.name) + " ";
  bool others = false;
  for (const OptionEntry& option : command.options) {
    if (option.positional || option.required)
      text += usage_of(option) + " ";
    else
      others = true;
  }
  if (others) text += "[" + italic("options") + "] ";
  text.pop_back();
  return text + "\n";
}

std::string described(const OptionEntry& option) {
  std::string text = ".TP\n";
  if (!option.short_name.empty()) text += bold(option.short_name) + ", ";
  text += option.positional ? italic(option.name) : bold(option.name);
  if (option.takes_value()) text += " " + italic(option.value);
  if (option.repeated) text += " ...";
  std::string help = option.help;
  if (option.required) help += " (required)";
  if (!option.initial.empty() && help.find("(default: ") == std::string::npos) help += " (default: " + option.initial + ")";
  return text + "\n" + line(help);
}

// A section for a command that runs. --help is described once, for the whole program.
std::string section(const CommandEntry& command) {
  std::string text = ".SS " + roff(command.name) + "\n" + synopsis(command) + ".PP\n" + line(command.summary + ".");
  for (const OptionEntry& option : command.options)
    if (option.name != "--help") text += described(option);
  return text;
}

constexpr const char* kEnd = R"(.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
The command failed, was stopped by a signal, or a check that it made did not pass.
.TP
.B 2
An option, a configuration file or a request is wrong; the message names it.
.SH ENVIRONMENT
.TP
.B OMP_NUM_THREADS
The number of CPU threads; by default one for each core.
.TP
.B BASED_LIBTORCH
The folder of LibTorch, read by the program of the Debian package.
.SH SEE ALSO
Each command prints its options with
.BR \-\-help .
)";

}  // namespace man_page_text

std::string man_page(const CommandEntry& program, const std::string& program_version) {
  using namespace man_page_text;
  std::string capitals = program.name;
  for (char& letter : capitals) letter = static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  // "Based: linear attention" names the program again, which the line of NAME has done.
  const size_t colon = program.summary.find(": ");
  const std::string summary = colon == std::string::npos ? program.summary : program.summary.substr(colon + 2);
  std::string text = ".\\\" Made by `" + program.name + " man`.\n.TH " + capitals + " 1 \"\" \"" +
                     roff(program.name + " " + program_version) + "\" \"User Commands\"\n.SH NAME\n" + roff(program.name) + " \\- " +
                     line(summary) + ".SH SYNOPSIS\n" + bold(program.name) + " " + italic("command") + " [" + italic("options") +
                     "]\n.SH DESCRIPTION\n" + line(program.summary + ".") +
                     "Results are printed to standard output, messages to standard error.\n";
  text += ".SH OPTIONS\n";
  for (const OptionEntry& option : program.options) text += described(option);
  text += ".SH COMMANDS\n";
  for_each_command(program, [&](const CommandEntry& command) {
    if (command.runs) text += section(command);
  });
  return text + kEnd;
}

}  // namespace based::apps
