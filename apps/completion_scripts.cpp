#include "apps/completion_scripts.h"

#include <map>
#include <tuple>

namespace based::apps {
namespace completion_scripts {

using Words = std::vector<std::string>;

std::string joined(const Words& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string replaced(std::string text, const std::vector<std::pair<std::string, std::string>>& changes) {
  for (const auto& [from, to] : changes)
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// A word in single quotes for bash and zsh.
std::string quoted(const std::string& text) { return "'" + replaced(text, {{"'", "'\\''"}}) + "'"; }

std::string quoted_for_fish(const std::string& text) { return "'" + replaced(text, {{"\\", "\\\\"}, {"'", "\\'"}}) + "'"; }

// The name that a shell function of this command has: "_based_tokenize_train".
std::string function_name(const CommandEntry& command) { return "_" + replaced(command.name, {{" ", "_"}, {"-", "_"}}); }

// Quoted patterns of a case, several a line.
std::string patterns(const Words& words, const std::string& indent) {
  constexpr size_t kWidth = 130;
  std::string text, line = indent;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string pattern = quoted(words[i]) + (i + 1 < words.size() ? " | " : ")");
    if (line.size() + pattern.size() > kWidth) {
      text += line + "\\\n";
      line = indent + "  ";
    }
    line += pattern;
  }
  return text + line;
}

// "COMMAND WORD" of each command below the program.
Words command_names(const CommandEntry& program) {
  Words names;
  for_each_command(program, [&](const CommandEntry& command) {
    for (const CommandEntry& nested : command.commands) names.push_back(nested.name);
  });
  return names;
}

// "COMMAND --option" of each option with a value.
Words options_with_values(const CommandEntry& program) {
  Words names;
  for_each_command(program, [&](const CommandEntry& command) {
    for (const OptionEntry& option : command.options)
      if (!option.positional && option.takes_value()) names.push_back(command.name + " " + option.name);
  });
  return names;
}

Words words_of_commands(const CommandEntry& command) {
  Words words;
  words.reserve(command.commands.size());
  for (const CommandEntry& nested : command.commands) words.push_back(nested.word());
  return words;
}

// The completions of one place of the command line.
struct Completions {
  Words words;
  bool files = false;
  bool operator<(const Completions& other) const { return std::tie(words, files) < std::tie(other.words, other.files); }
};

std::string bash_assignments(const Completions& completions) {
  std::string text;
  if (!completions.words.empty()) text += " words=" + quoted(joined(completions.words, " "));
  if (completions.files) text += " files=yes";
  return text;
}

// The cases of the values of options; options with the same values share one.
std::string bash_values(const CommandEntry& program) {
  std::map<Completions, Words> places;
  for_each_command(program, [&](const CommandEntry& command) {
    for (const OptionEntry& option : command.options)
      if (!option.positional && (!option.choices.empty() || option.files))
        places[{option.choices, option.files}].push_back(command.name + " " + option.name);
  });
  std::string text;
  for (const auto& [completions, names] : places) text += patterns(names, "      ") + bash_assignments(completions) + " ;;\n";
  return text;
}

// The cases of the words after a command.
std::string bash_words(const CommandEntry& program) {
  std::string text;
  for_each_command(program, [&](const CommandEntry& command) {
    Words options;
    Completions completions{words_of_commands(command)};
    for (const OptionEntry& option : command.options) {
      if (!option.positional) {
        options.push_back(option.name);
        if (!option.short_name.empty()) options.push_back(option.short_name);
        continue;
      }
      completions.words.insert(completions.words.end(), option.choices.begin(), option.choices.end());
      completions.files = completions.files || option.files;
    }
    text += "      " + quoted(command.name) + ") options=" + quoted(joined(options, " ")) + bash_assignments(completions) + " ;;\n";
  });
  return text;
}

// A description in a specification of zsh's _arguments.
std::string zsh_text(const std::string& text) { return replaced(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}}); }

// ":message:action" of an option or argument with a value.
std::string zsh_value(const OptionEntry& option) {
  const std::string message = ":" + zsh_text(option.positional ? option.name : option.value) + ":";
  const std::string choices = joined(option.choices, " ");
  if (option.files && !option.choices.empty())  // a colon of an action that has no backslash would end the action
    return message + "{_alternative \"values\\:value\\:(" + choices + ")\" \"files\\:file\\:_files\"}";
  if (option.files) return message + "_files";
  return message + (option.choices.empty() ? " " : "(" + choices + ")");
}

std::string zsh_option(const OptionEntry& option) {
  const std::string repeated = option.repeated ? "*" : "", help = "[" + zsh_text(option.help) + "]";
  if (option.positional) return quoted((repeated.empty() ? ":" : "*") + zsh_value(option));
  if (option.takes_value()) return quoted(repeated + option.name + "=" + help + zsh_value(option));
  if (option.short_name.empty()) return quoted(option.name + help);
  const std::string names = "(" + option.short_name + " " + option.name + ")";
  return quoted(names + option.short_name + help) + " " + quoted(names + option.name + help);
}

// A call of _arguments for the command's options, and for its positional arguments if `positional`.
std::string zsh_arguments(const CommandEntry& command, bool positional, const std::string& flags, const std::string& indent) {
  std::string text = "_arguments -S" + flags;
  for (const OptionEntry& option : command.options)
    if (positional || !option.positional) text += " \\\n" + indent + zsh_option(option);
  return text;
}

std::string zsh_function(const CommandEntry& command) {
  const std::string begin = function_name(command) + "() {\n";
  if (command.commands.empty()) return begin + "  " + zsh_arguments(command, true, "", "    ") + "\n}\n\n";
  // zsh allows one specification of the rest of the words, and that of the subcommand's words is one. So the command's own positional
  // arguments are completed apart.
  Completions own;
  for (const OptionEntry& option : command.options)
    if (option.positional) own.words.insert(own.words.end(), option.choices.begin(), option.choices.end());
  std::string text = begin + "  local context state state_descr line ret=1\n  typeset -A opt_args\n  " +
                     zsh_arguments(command, false, " -C", "    ") +
                     " \\\n    '1: :->command' '*:: :->arguments' && ret=0\n  case $state in\n    command)\n      local -a commands=(";
  for (const CommandEntry& nested : command.commands) text += "\n        " + quoted(nested.word() + ":" + zsh_text(nested.summary));
  text += "\n      )\n      _describe -t commands command commands && ret=0";
  if (!own.words.empty()) text += "\n      compadd -- " + joined(own.words, " ") + " && ret=0";
  text += " ;;\n    arguments)\n      case $line[1] in\n";
  for (const CommandEntry& nested : command.commands) text += "        " + nested.word() + ") " + function_name(nested) + " && ret=0 ;;\n";
  if (!own.words.empty()) text += "        *) " + zsh_arguments(command, true, "", "          ") + " && ret=0 ;;\n";
  return text + "      esac ;;\n  esac\n  return ret\n}\n\n";
}

std::string fish_option(const CommandEntry& command, const OptionEntry& option, const std::string& start) {
  std::string line = start;
  if (!option.positional) {
    line += " -l " + option.name.substr(2);
    if (!option.short_name.empty()) line += " -s " + option.short_name.substr(1);
    if (option.takes_value()) line += " -r";
  }
  if (option.takes_value() && !option.files) line += " -f";
  if (option.files) line += " -F";
  if (!option.choices.empty()) line += " -a " + quoted_for_fish(joined(option.choices, " "));
  // A command's positional argument that is any text completes nothing.
  if (option.positional && !option.files && option.choices.empty()) return "";
  return line + " -d " + quoted_for_fish(option.positional ? command.word() + ": " + option.name : option.help) + "\n";
}

}  // namespace completion_scripts

std::string bash_completion(const CommandEntry& program) {
  using namespace completion_scripts;
  const std::string& name = program.name;
  return "# Completes the arguments of `" + name + "` in bash. Made by `" + name + " completion bash`.\n" +  //
         "_" + name + "() {\n" + "  local word=${COMP_WORDS[COMP_CWORD]} command=" + name +
         " option= options= words= files= i=1\n"
         "  # Finds the command and, if the cursor is at an option's value, the option. bash makes three words of --option=value.\n"
         "  while ((i < COMP_CWORD)); do\n"
         "    case \"$command ${COMP_WORDS[i]}\" in\n" +
         patterns(command_names(program), "      ") + " command=\"$command ${COMP_WORDS[i]}\" ;;\n" +
         patterns(options_with_values(program), "      ") +
         "\n"
         "        option=${COMP_WORDS[i]}\n"
         "        if [[ ${COMP_WORDS[i + 1]} == '=' ]]; then ((i += 2)); else ((i += 1)); fi ;;\n"
         "    esac\n"
         "    ((i += 1))\n"
         "  done\n"
         "  if [[ $word == '=' ]]; then word=; fi\n"
         "  if ((i > COMP_CWORD)); then\n"
         "    case \"$command $option\" in\n" +
         bash_values(program) +
         "    esac\n"
         "  else\n"
         "    case $command in\n" +
         bash_words(program) +
         "    esac\n"
         "    if [[ $word == -* ]]; then words=$options files=; fi\n"
         "  fi\n"
         "  COMPREPLY=()\n"
         "  if [[ $words ]]; then mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\"); fi\n"
         "  if [[ $files ]]; then\n"
         "    word=${word#[\\\"\\']} word=${word//\\\\/}  # without quotes, which readline adds to names that need them\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$word\")\n"
         "  fi\n"
         "}\n"
         "complete -F _" +
         name + " " + name + "\n";
}

std::string zsh_completion(const CommandEntry& program) {
  using namespace completion_scripts;
  const std::string& name = program.name;
  std::string text =
      "#compdef " + name + "\n# Completes the arguments of `" + name + "` in zsh. Made by `" + name + " completion zsh`.\n\n";
  for_each_command(program, [&](const CommandEntry& command) { text += zsh_function(command); });
  const std::string function = function_name(program);
  return text + "if [[ $funcstack[1] == " + function + " ]]; then\n  " + function + " \"$@\"\nelse\n  compdef " + function + " " + name +
         "\nfi\n";
}

std::string fish_completion(const CommandEntry& program) {
  using namespace completion_scripts;
  const std::string& name = program.name;
  const auto cases = [](const Words& words) {
    std::string text;
    for (const std::string& word : words) text += " " + quoted_for_fish(word);
    return text;
  };
  std::string text = "# Completes the arguments of `" + name + "` in fish. Made by `" + name + " completion fish`.\n" + "function __" +
                     name + "_command_is -d 'Whether the words before the cursor name this command'\n" +
                     "    set -l words (commandline -opc)\n"
                     "    set -e words[1]\n"
                     "    set -l command " +
                     name +
                     "\n"
                     "    set -l value_follows 0\n"
                     "    for word in $words\n"
                     "        if test $value_follows = 1\n"
                     "            set value_follows 0\n"
                     "            continue\n"
                     "        end\n"
                     "        switch \"$command $word\"\n"
                     "            case" +
                     cases(command_names(program)) +
                     "\n"
                     "                set command \"$command $word\"\n"
                     "            case" +
                     cases(options_with_values(program)) +
                     "\n"
                     "                set value_follows 1\n"
                     "        end\n"
                     "    end\n"
                     "    test \"$command\" = \"$argv\"\n"
                     "end\n\n"
                     "complete -c " +
                     name + " -f\n";
  for_each_command(program, [&](const CommandEntry& command) {
    const std::string start = "complete -c " + name + " -n '__" + name + "_command_is " + command.name + "'";
    for (const CommandEntry& nested : command.commands)
      text += start + " -a " + nested.word() + " -d " + quoted_for_fish(nested.summary) + "\n";
    for (const OptionEntry& option : command.options) text += fish_option(command, option, start);
  });
  return text;
}

}  // namespace based::apps
