# Makes the JSON files of this folder: see simulate.py.
library(glmmTMB)
library(jsonlite)
d <- read.csv("simulated.csv")
d$g <- factor(d$g)
families <- list(
  binomial = list(binomial(), "cbind(successes, trials - successes)"),
  `negative-binomial` = list(nbinom2(), "count"),
  gamma = list(Gamma(link = "log"), "amount"),
  t = list(t_family(), "heavy"),
  `t-found` = list(t_family(), "heavy")
)
right <- c(pooled = "x", intercept = "x + (1 | g)", slope = "x + (x | g)")
control <- glmmTMBControl(optCtrl = list(iter.max = 1000, eval.max = 1000, rel.tol = 1e-14, x.tol = 1e-14))
for (name in names(families)) for (kind in names(right)) {
  formula <- paste(families[[name]][[2]], "~", right[[kind]])
  start <- if (name == "t") list(psi = log(4)) else NULL
  map <- if (name == "t") list(psi = factor(NA)) else list()
  fit <- tryCatch(glmmTMB(as.formula(formula), d, families[[name]][[1]], control = control, start = start, map = map),
                  error = function(e) {print(e); NULL})
  if (is.null(fit)) next
  D <- if (kind == "pooled") NULL else unclass(VarCorr(fit)$cond$g)
  attributes(D) <- attributes(D)["dim"]
  out <- list(call = paste0("glmmTMB(", formula, ", family = ", name, ")"), glmmTMB = "1.1.5",
              fixef = unname(fixef(fit)$cond), se = unname(sqrt(diag(vcov(fit)$cond))), D = D, sigma = sigma(fit),
              logLik = as.numeric(logLik(fit)), gradient = max(abs(fit$sdr$gradient.fixed)))
  if (name == "t-found") out$degrees <- exp(unname(fit$fit$parfull["psi"]))
  write(toJSON(out, digits = 12, auto_unbox = TRUE), paste0(name, "_", kind, ".json"))
}
