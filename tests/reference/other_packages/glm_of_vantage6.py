"""``PYTHONPATH=CHECKOUT python glm_of_vantage6.py heart.csv dyestuff.csv sleepstudy.csv``: vantage6's figures, as JSON.

CHECKOUT is that of v6-glm-py, whose module is named with hyphens; its network of sites is vantage6's mock.
"""

import json
import sys
from importlib.metadata import version

import pandas as pd
from vantage6.algorithm.mock.network import MockNetwork


def run(table, site, formula, family):
    parts = [{"Database": {"database": rows.reset_index(drop=True)}} for _, rows in table.groupby(site)]
    network = MockNetwork(datasets=parts, module_name="v6-glm-py")
    client = network.user_client
    one = network.hq.dataframes[0]["id"]
    asked = {"formula": formula, "family": family}
    first = client.organization.list()[0]["id"]
    databases = [{"type": "dataframe", "dataframe_id": one}]
    task = client.task.create(method="glm", arguments=asked, organizations=[first], databases=databases)
    found = client.wait_for_results(task["id"])[0]
    p, rounds = found["details"]["num_variables"], found["details"]["iterations"]
    beta, error = found["coefficients"]["beta"], found["coefficients"]["std_error"]
    numbers = rounds * (p * p + p + 3 + (family == "gaussian") + 3)
    residual = [found["details"]["dispersion"]] if family == "gaussian" else []
    terms = {name: [beta[name], error[name]] for name in beta}
    return {"terms": terms, "variances": residual, "exchanges": 1 + 2 * rounds, "numbers": numbers}


heart, dyestuff, sleepstudy = (pd.read_csv(path) for path in sys.argv[1:])
columns = ["disease", "age", "sex", "oldpeak", "exang", "hospital"]
heart = heart[columns].dropna().astype({"sex": object, "exang": object})
third = {name: k // 2 for k, name in enumerate(sorted(dyestuff["Batch"].unique()))}
sixth = {name: k // 6 for k, name in enumerate(sleepstudy["Subject"].unique())}
out = {
    "version": "v6-glm-py 1.2.1, vantage6-algorithm-tools " + version("vantage6-algorithm-tools"),
    "dyestuff": run(dyestuff, dyestuff["Batch"].map(third), "Yield ~ 1", "gaussian"),
    "sleepstudy": run(sleepstudy, sleepstudy["Subject"].map(sixth), "Reaction ~ Days", "gaussian"),
    "heart": run(heart, "hospital", "disease ~ age + sex + oldpeak + exang", "binomial"),
    "heart_with_a_factor_of_hospitals": run(
        heart, "hospital", "disease ~ age + sex + oldpeak + exang + hospital", "binomial"
    ),
}
print(json.dumps(out, indent=1))
