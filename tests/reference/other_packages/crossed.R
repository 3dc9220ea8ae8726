# Rscript crossed.R FOLDER: lme4 where groupings cross, on the splits that crossed.py wrote, as JSON.
suppressMessages(library(lme4))
measure <- function(f, d, y, path) {
  m <- lmer(f, d)
  errors <- sapply(read.csv(path), function(out) sqrt(mean((d[out == 1, y] - predict(lmer(f, d[out == 0, ]), d[out == 1, ], allow.new.levels = TRUE))^2)))
  list(rmse = mean(errors), std_errors = as.list(coef(summary(m))[, 2, drop = TRUE]), variances = as.data.frame(VarCorr(m))$vcov)
}
in_folder <- function(name) file.path(commandArgs(TRUE)[1], paste0(name, "_splits.csv"))
cat(jsonlite::toJSON(auto_unbox = TRUE, digits = 9, pretty = 1, list(
  penicillin = measure(diameter ~ 1 + (1 | plate) + (1 | sample), Penicillin, "diameter", in_folder("penicillin")),
  penicillin_fixed = list(std_errors = as.list(coef(summary(lmer(diameter ~ sample + (1 | plate), Penicillin)))[, 2])),
  insteval = measure(y ~ service + (1 | s) + (1 | d), InstEval, "y", in_folder("insteval")))), "\n")
