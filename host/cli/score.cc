// SPDX-License-Identifier: MIT
// score: logits of every position of given id lists, perplexity, and drafts.
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "host/checkpoint/safetensors.h"
#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"
#include "host/lifecycle/step_driver.h"

namespace tenon::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Prompt {
    std::vector<int32_t> ids;
    std::vector<float> logits;
    std::vector<int32_t> drafts;
};

Result<std::vector<Prompt>> read_prompts(const std::string& path, int32_t vocab) {
    std::ifstream file(path);
    if (!file) {
        return error(Code::not_found, "{}: cannot be opened: {}", path, std::strerror(errno));
    }
    std::vector<Prompt> prompts;
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
        if (line.empty()) {
            continue;
        }
        const Json json = Json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("ids") || !json["ids"].is_array() ||
            json["ids"].empty()) {
            return error(Code::invalid_argument, "{}:{}: expected {\"ids\": [numbers]}", path,
                         number);
        }
        Prompt p;
        for (const Json& id : json["ids"]) {
            if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab) {
                return error(Code::invalid_argument, "{}:{}: ids[{}] is not an id below {}", path,
                             number, p.ids.size(), vocab);
            }
            p.ids.push_back(id.get<int32_t>());
        }
        prompts.push_back(std::move(p));
    }
    return prompts;
}

/// Sum of negative log-likelihoods of ids[1..) under the rows before them, in double.
double surprise(const Prompt& p, int32_t vocab) {
    double sum = 0;
    for (size_t i = 0; i + 1 < p.ids.size(); ++i) {
        const float* row = p.logits.data() + i * static_cast<size_t>(vocab);
        double top = row[0];
        for (int32_t v = 1; v < vocab; ++v) {
            top = std::max(top, static_cast<double>(row[v]));
        }
        double total = 0;
        for (int32_t v = 0; v < vocab; ++v) {
            total += std::exp(row[v] - top);
        }
        sum += top + std::log(total) - row[p.ids[i + 1]];
    }
    return sum;
}

int32_t argmax(const float* row, int32_t vocab) {
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; ++v) {
        best = row[v] > row[best] ? v : best;
    }
    return best;
}

Status run(Deployment& d, const ScoreArgs& args, Json* report) {
    TENON_TRY(d.open(args.profile.profile, args.profile.set));
    TENON_TRY(d.require_plugins());
    TENON_TRY(d.create());
    TENON_TRY(d.plan());
    TENON_TRY(d.check_fit());
    TENON_TRY(d.load());
    const int32_t vocab = d.info().vocab;
    TENON_ASSIGN(std::vector<Prompt> prompts, read_prompts(args.ids, vocab));
    StepDriver driver(*d.model(), d.request());
    double sum = 0;
    int64_t scored = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
        Prompt& p = prompts[i];
        TENON_TRY_CTX(driver.open(), "prompt {}", i);
        TENON_TRY_CTX(driver.prefill(p.ids, &p.logits), "prompt {}", i);
        sum += surprise(p, vocab);
        scored += static_cast<int64_t>(p.ids.size()) - 1;
        if (args.drafts) {
            // The drafter follows a window: the last token is run again as a decode row, as serving
            // does.
            const int32_t next =
                argmax(p.logits.data() + (p.ids.size() - 1) * static_cast<size_t>(vocab), vocab);
            TENON_TRY_CTX(driver.open(), "prompt {}", i);
            const Span<const int32_t> head(p.ids.data(), p.ids.size() - 1);
            TENON_TRY_CTX(driver.prefill(head, nullptr), "prompt {}", i);
            int32_t drawn = -1;
            TENON_TRY_CTX(driver.decode_and_draft(p.ids.back(), &drawn, &p.drafts), "prompt {}", i);
            if (drawn != next) {
                (*report)["notes"].push_back(format(
                    "prompt {}: the decode row draws {}, the prompt row {}", i, drawn, next));
            }
        }
    }
    std::vector<TensorOut> tensors;
    for (size_t i = 0; i < prompts.size(); ++i) {
        const Prompt& p = prompts[i];
        tensors.push_back({format("logits.{}", i),
                           DType::f32,
                           {static_cast<int64_t>(p.ids.size()), vocab},
                           p.logits.data()});
        if (args.drafts) {
            tensors.push_back({format("drafts.{}", i),
                               DType::i32,
                               {static_cast<int64_t>(p.drafts.size())},
                               p.drafts.data()});
        }
    }
    TENON_TRY(write_safetensors(args.logits, tensors));
    (*report)["prompts"] = prompts.size();
    (*report)["tokens"] = scored;
    (*report)["nll"] = scored > 0 ? sum / static_cast<double>(scored) : 0.0;
    (*report)["perplexity"] = scored > 0 ? std::exp(sum / static_cast<double>(scored)) : 1.0;
    return {};
}

}  // namespace

int score_verb(const ScoreArgs& args) {
    HostServices host;
    Deployment d(host);
    Json report = Json::object();
    const Status status = guard([&] { return run(d, args, &report); });
    if (!status.ok()) {
        const bool input =
            status.code() == Code::invalid_argument || status.code() == Code::not_found;
        return fail(d.model() != nullptr && input ? static_cast<int>(kExitUsage) : d.exit_code(),
                    status.message().str());
    }
    std::cout << report.dump() << '\n';
    return kExitOk;
}

}  // namespace tenon::cli
