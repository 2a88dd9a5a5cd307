// SPDX-License-Identifier: MIT
// Scripts for bash, zsh and fish.
#include "host/cli/completion.h"

namespace tenon::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& w : words) {
        out += (out.empty() ? "" : " ") + w;
    }
    return out;
}

std::string bash(const std::vector<CompletionVerb>& verbs) {
    std::string names;
    std::string cases;
    for (const CompletionVerb& v : verbs) {
        names += (names.empty() ? "" : " ") + v.name;
        cases += "        " + v.name + ") words=\"" + joined(v.options) + "\" ;;\n";
    }
    return "_tenon() {\n    local words=\"\" word=\"${COMP_WORDS[COMP_CWORD]}\"\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"" +
           names + "\"\n    else\n        case \"${COMP_WORDS[1]}\" in\n" + cases +
           "        esac\n    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "    [ \"$COMP_CWORD\" -gt 1 ] && [[ \"$word\" != -* ]] && COMPREPLY+=($(compgen -f -- "
           "\"$word\"))\n"
           "}\ncomplete -o filenames -F _tenon tenon\n";
}

std::string zsh(const std::vector<CompletionVerb>& verbs) {
    std::string list;
    std::string cases;
    for (const CompletionVerb& v : verbs) {
        std::string help = v.help.substr(0, v.help.find('\n'));
        for (size_t at = help.find_first_of(":'"); at != std::string::npos;
             at = help.find_first_of(":'", at)) {
            help[at] = ' ';
        }
        list += "        '" + v.name + ":" + help + "'\n";
        cases += "        " + v.name + ") compadd -- " + joined(v.options) + "; _files ;;\n";
    }
    return "#compdef tenon\n_tenon() {\n    local -a verbs=(\n" + list +
           "    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n "
           "   fi\n"
           "    case \"$words[2]\" in\n" +
           cases + "    esac\n}\n_tenon \"$@\"\n";
}

std::string fish(const std::vector<CompletionVerb>& verbs) {
    std::string out;
    for (const CompletionVerb& v : verbs) {
        std::string help = v.help.substr(0, v.help.find('\n'));
        for (size_t at = help.find('\''); at != std::string::npos; at = help.find('\'', at)) {
            help[at] = ' ';
        }
        out +=
            "complete -c tenon -n __fish_use_subcommand -f -a " + v.name + " -d '" + help + "'\n";
        for (const std::string& o : v.options) {
            out += "complete -c tenon -n '__fish_seen_subcommand_from " + v.name + "' -l " +
                   o.substr(2) + "\n";
        }
    }
    return out;
}

}  // namespace

std::string completion_script(const std::string& shell, const std::vector<CompletionVerb>& verbs) {
    return shell == "bash" ? bash(verbs) : shell == "zsh" ? zsh(verbs) : fish(verbs);
}

}  // namespace tenon::cli
